"""Operators in C++: how they are compiled and found, and that a row's result depends on that row alone."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import toy

from amlp_fairseq.cli import main as cli
from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.ops import compiled, search_steps
from amlp_fairseq.ops.compiled import compile_source, library_of, loaded
from amlp_fairseq.ops.cpu_layers import SOURCE

#: Something that compiles at once.
SMALL = "extern int here; int here = 1;\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of its own folder, and a cache without libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    loaded.cache_clear()
    path = tmp_path / "small" / "kernels.cpp"
    path.parent.mkdir()
    path.write_text(SMALL)
    return path


@pytest.fixture
def layers_in_cpp() -> None:
    compile_source(SOURCE)
    loaded.cache_clear()


def test_it_is_compiled_once_and_then_found(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not loaded(source)
    library = compile_source(source)
    assert library == library_of(source)
    assert [*library.parent.iterdir()] == [library]
    monkeypatch.setenv("CXX", "not-needed")
    assert compile_source(source) == library
    loaded.cache_clear()
    assert loaded(source)


def test_another_source_is_another_library(source: Path) -> None:
    library = compile_source(source)
    source.write_text(SMALL.replace("1", "2"))
    assert not loaded(source)
    assert compile_source(source) != library


def test_a_header_is_part_of_the_source(source: Path) -> None:
    header = source.with_name("small.h")
    header.write_text(SMALL)
    source.write_text('#include "small.h"\n')
    library = compile_source(source)
    header.write_text(SMALL.replace("1", "2"))
    assert not loaded(source)
    assert compile_source(source) != library


@pytest.mark.parametrize("changed", ["torch", "processor"])
def test_what_it_was_compiled_for_counts(changed: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = library_of(source)
    if changed == "torch":
        monkeypatch.setattr(torch, "__version__", "0.0")
    else:
        monkeypatch.setattr(compiled, "_processor", lambda: "another")
    assert library_of(source) != library


def test_plain_pytorch_can_be_asked_for(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_source(source)
    monkeypatch.setenv("AMLP_FAIRSEQ_BACKEND", "torch")
    loaded.cache_clear()
    assert not loaded(source)


def test_a_damaged_library_is_not_used_and_made_anew(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    library_of(source).parent.mkdir(parents=True)
    library_of(source).write_text("damaged")
    with caplog.at_level(logging.WARNING):
        assert not loaded(source)
    assert str(library_of(source)) in caplog.text
    compile_source(source)
    loaded.cache_clear()
    assert loaded(source)


def test_without_a_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"no C\+\+ compiler no-such-compiler .*apt-get install g\+\+"):
        compile_source(source)
    assert not [*library_of(source).parent.iterdir()]


def test_a_compiler_with_arguments(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ -DMORE=1")
    source.write_text("int here = MORE;\n")
    assert compile_source(source) == library_of(source)


def test_what_the_compiler_says_is_shown(source: Path) -> None:
    source.write_text("this is not C++")
    with pytest.raises(ValueError, match=r"c\+\+ ended with 1:[^§]*error"):
        compile_source(source)
    assert not [*library_of(source).parent.iterdir()]


@pytest.mark.parametrize("place", ["file", "/proc/no-such-folder"])
def test_a_cache_that_cannot_be_written(
    place: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    with pytest.raises(ValueError, match=f"{place}/amlp_fairseq/small-"):
        compile_source(source)


@pytest.mark.parametrize(
    ("home", "message"),
    [
        (None, "there is no home folder for the libraries: name a folder in XDG_CACHE_HOME"),
        (f"/{'x' * 300}", f"/{'x' * 300}/.cache/amlp_fairseq/.*: File name too long"),  # as with one that is forbidden
    ],
    ids=["none", "unusable"],
)
def test_without_a_home_folder(
    home: str | None,
    message: str,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is compiled there, which is no error; the command says why not."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os, "getuid", lambda: 12345)  # which is in no list of users
    else:
        monkeypatch.setenv("HOME", home)
    assert not loaded(source)
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", "compile"])
    with pytest.raises(SystemExit, match=f"^amlp-fairseq compile: {message}$"):
        cli.main()
    assert capsys.readouterr().err == ""


def test_the_command_says_in_one_line_why_not(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", "compile"])
    with pytest.raises(
        SystemExit, match=r"^amlp-fairseq compile: there is no C\+\+ compiler no-such-compiler \(on Debian"
    ):
        cli.main()
    assert capsys.readouterr().err == f"compiling {SOURCE}\n"


def test_nothing_is_left_of_a_command_that_was_interrupted(tmp_path: Path) -> None:
    compiler, begun = tmp_path / "compiler", tmp_path / "begun"
    compiler.write_text(f"#!/bin/sh\ntouch {begun}\nsleep 100\n")
    compiler.chmod(0o755)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": str(compiler)}
    command = [sys.executable, "-m", "amlp_fairseq", "compile"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
    assert process.returncode == -signal.SIGINT
    assert not [*(tmp_path / "amlp_fairseq").iterdir()]


def test_the_command_prints_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run("compile", [])
    assert capsys.readouterr().out.splitlines() == [str(library_of(each)) for each in (SOURCE, search_steps.SOURCE)]


@pytest.mark.parametrize("decode_dtype", [None, "int8"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("layers_in_cpp")
@torch.inference_mode()
def test_a_row_depends_on_that_row_alone(decode_dtype: str | None, threads: int) -> None:
    """Bit for bit: rows together, with threads, against each alone, in the encoder's layers and the decoder's."""
    torch.manual_seed(0)
    rows, width, slots = 70, 40, 9
    task = toy.task(12, num_directions=2)
    model = InferenceModel(toy.model(task, encoder_embed_dim=width, decoder_embed_dim=width), decode_dtype)
    x, kv = torch.randn(rows, 2, width), torch.randn(2, rows, 2, 2, slots, width // 2)
    memory, every = torch.randn(2, 2, rows, 2, 30, width // 2), torch.randn(rows, 30, width)

    def outputs(some: slice) -> tuple[torch.Tensor, torch.Tensor]:
        states, (ks, vs) = [*kv[:, some].clone()], memory[:, :, some]
        step = model.decoder.fused_layers(x[some], torch.arange(4, 6), 6, None, states, [*ks], [*vs], None)
        return step, model.encoder.layers[0].layers(every[some], None, None, [], [], None)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = outputs(slice(None))
    finally:
        torch.set_num_threads(before)
    for row in (0, 1, 33, rows - 1):
        for found, expected in zip(together, outputs(slice(row, row + 1)), strict=True):
            assert torch.equal(found[row], expected[0])


@pytest.mark.parametrize("decode_dtype", [None, "int8"])
@pytest.mark.parametrize("width", [40, 512])
@pytest.mark.usefixtures("layers_in_cpp")
@torch.inference_mode()
def test_what_is_no_number_stays_none(width: int, decode_dtype: str | None) -> None:
    """Not something finite, which would be a translation; and in its own row alone."""
    model = InferenceModel(toy.model(toy.task(12), encoder_embed_dim=width, decoder_embed_dim=width), decode_dtype)
    x = torch.randn(3, 5, width)
    x[1, 2, 3] = math.nan
    numbers = model.encoder.layers[0].layers(x, None, None, [], [], None).isfinite()
    assert numbers[[0, 2]].all()
    assert not numbers[1].any()
