"""Files from elsewhere: refused by name or read, while nothing is run and nothing is written where it does not belong.

Checkpoints that run code when they are unpickled are in test_checkpoint_utils.py, options in test_literal_options.py,
odd names of the user's own files in test_own_text.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import subprocess
import tarfile
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.audio.data_cfg import S2TDataConfig
from numpy._core import multiarray
from omegaconf.basecontainer import BaseContainer

from amlp_fairseq.corpora import text
from amlp_fairseq.training import config


def folder_content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# Archives


def member(name: str, content: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_of_corpora_stay_in_their_folder(kind: str, tmp_path: Path) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "new.en"
    names = ["../new.en", "../new.de"]
    if kind == "tar":
        archive = tar(tmp_path / "a.tar.gz", [member(name, b"a\n") for name in names])
    else:
        archive = tmp_path / "a.zip"
        with zipfile.ZipFile(archive, "w") as zipped:
            for name in names:
                zipped.writestr(name, "a\n")
    assert list(text.archive_rows(archive, "*new.{}", ("en", "de"), scratch)) == [("a", "a")]
    assert not outside.exists()
    assert {path.parent.parent for path in tmp_path.rglob("new.*")} == {scratch}


# Names of files


@pytest.mark.parametrize("language", ["$(touch trace)", "`touch trace`", ";touch trace;", "spaces ' \" & | > é", "en"])
def test_names_of_data_files_are_no_commands(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of data can have them; nothing of it is an option of the user's."""
    monkeypatch.chdir(tmp_path)
    prefix = f"train.{language}-{language}.{language}"
    Path(f"{prefix}.fasta").write_text(">a\nAC\nG\n>b\nT\n")
    assert data_utils.infer_language_pair(".") == [language, language]
    if language == "en":
        assert data_utils.load_indexed_dataset(prefix, Dictionary()).sizes.tolist() == [3, 1]
        return
    with pytest.raises(ValueError, match=re.escape(prefix)):
        data_utils.load_indexed_dataset(prefix, Dictionary())
    assert sorted(folder_content(tmp_path)) == [f"{prefix}.fasta"]
    if "touch" in language:  # stock runs it
        with contextlib.suppress(subprocess.CalledProcessError):
            indexed_dataset.make_dataset.__wrapped__(prefix, "fasta")
        assert Path("trace").exists()


# Dictionaries


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1\na 2\n", "Duplicate word found when loading Dictionary: 'a'"),
        ("a 1\n<pad> 2\n", "Duplicate word found when loading Dictionary: '<pad>'"),
        ("a 1\nb\n", "Incorrect dictionary format, expected '<token> <cnt> .flags.': \"b"),
        ("a 1\nb x\n", "Incorrect dictionary format, expected '<token> <cnt> .flags.': \"b"),
        ("a 1\n\n", "Incorrect dictionary format"),
        ("a __import__('os').getpid()\n", "Incorrect dictionary format"),
        (b"a 1\n\xff 2\n", "Incorrect encoding detected in .*dict.txt"),
    ],
)
def test_damaged_dictionaries_are_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Exception, match=message):
        Dictionary.load(str(path))


# Binarised text


def edited(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + value + whole[at + len(value) :]


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty index": (".idx", lambda whole: b""),
    "header": (".idx", lambda whole: whole[:20]),
    "index cut off": (".idx", lambda whole: whole[:-1]),
    "magic": (".idx", lambda whole: b"GARBAGE!" + whole[8:]),
    "text": (".idx", lambda whole: b"hello\n"),
    "empty data": (".bin", lambda whole: b""),
    "data cut off": (".bin", lambda whole: whole[:-1]),
}
OF_MMAP = {
    "data type": (".idx", edited(17, b"\x63")),
    "many sentences": (".idx", edited(18, b"\xff" * 8)),
    "length": (".idx", edited(26, b"\xff\xff\xff\x7f")),
    "negative length": (".idx", edited(26, b"\xff\xff\xff\xff")),
    "place": (".idx", edited(38, b"\xff" * 7 + b"\x00")),
    "negative place": (".idx", edited(38, b"\xff" * 8)),
}
OF_CACHED = {
    "data type": (".idx", edited(16, b"\x63")),
    "many sentences": (".idx", edited(32, b"\xff" * 7 + b"\x00")),
    "many sizes": (".idx", edited(40, b"\xff" * 7 + b"\x00")),
    "negative place": (".idx", edited(80, b"\xff" * 8)),
    "place": (".idx", edited(104, b"\xff" * 4)),
}


@pytest.mark.parametrize(
    ("impl", "damage"),
    [
        *(("mmap", damage) for damage in (DAMAGES | OF_MMAP).items()),
        *(("cached", damage) for damage in (DAMAGES | OF_CACHED).items()),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_damaged_binarised_files_are_named(impl: str, damage: Any, tmp_path: Path) -> None:
    prefix = tmp_path / "train.a-b.a"
    toy.binarise(prefix, [[5, 6, 2], [7, 2], [8, 9, 10, 2]], impl)
    dataset = data_utils.load_indexed_dataset(str(prefix))
    assert [len(dataset[i]) for i in range(3)] == [3, 2, 4] if impl == "mmap" else len(dataset) == 3
    suffix, change = damage[1]
    path = Path(f"{prefix}{suffix}")
    path.write_bytes(change(path.read_bytes()))
    named = ".bin" if damage[0] in ("length", "place") else suffix
    with pytest.raises(ValueError, match=f"^{re.escape(str(prefix))}{named} is "):
        data_utils.load_indexed_dataset(str(prefix))


# YAML


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch trace']",
        "!!python/object/new:os.system ['touch trace']",
        "!!python/object:os.system {a: b}",
        "!!python/module:antigravity",
        "!!python/object/apply:subprocess.check_output {args: [touch, trace]}",
    ],
)
def test_yaml_makes_no_objects(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.yaml"
    path.write_text(f"train:\n  lr: {value}\n")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: could not determine a constructor"):
        config.load(path, "embedded", "embedded")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is damaged: ConstructorError"):
        config.read(path)
    with pytest.raises(Exception, match=f"^Failed to load config from {re.escape(str(path))}: could not determine "):
        S2TDataConfig(path)
    assert not (tmp_path / "trace").exists()


def test_interpolations_run_nothing() -> None:
    """``${name:...}`` in a configuration calls one of these: none runs code or reads a file."""
    assert BaseContainer._resolvers.keys() <= {
        *("oc.create", "oc.decode", "oc.deprecated", "oc.dict.keys", "oc.dict.values", "oc.env", "oc.select"),
        *("hydra", "now", "python_version"),
    }


# Checkpoints


class Reduced:
    """Unpickled by calling a function, with a state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def archive_with(path: Path, pickled: bytes, **records: bytes) -> Path:
    """A checkpoint as torch writes it, of any pickle and records."""
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("archive/data.pkl", pickled)
        zipped.writestr("archive/version", "3\n")
        zipped.writestr("archive/byteorder", "little")
        for name, content in records.items():
            zipped.writestr(f"archive/{name}", content)
    return path


def storage(key: str, elements: int = 1, kind: bytes = b"ctorch\nFloatStorage\n") -> bytes:
    """A pickle of a storage, torch's persistent id."""

    def word(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    number = pickle.dumps(elements, protocol=2)[2:-1]
    return b"\x80\x02}" + word("model") + b"(" + word("storage") + kind + word(key) + word("cpu") + number + b"tQs."


HOSTILE: dict[str, bytes] = {
    "a name that leaves": storage("../../../../etc/passwd"),
    "an absolute name": storage("/etc/passwd"),
    "a storage that is not there": storage("0", 1 << 50),
    "a storage that is code": storage("0", kind=b"cposix\nsystem\n"),
    "a persistent id that is code": b"\x80\x02(cposix\nsystem\nX\x04\x00\x00\x00truetRQ.",
    "code behind a getattr": b"\x80\x02cbuiltins\ngetattr\n(cbuiltins\n__import__\nX\x08\x00\x00\x00__call__tR.",
    "code in a state": pickle.dumps({"model": Reduced(dict, (), {"a": Reduced(os.getpid, ())})}, protocol=2),
    "an instruction of old pickles": b"(S'touch trace'\niposix\nsystem\n.",
    "protocol 4": pickle.dumps({"model": Reduced(os.system, ("touch trace",))}, protocol=4),
    "a registered extension": b"\x80\x02\x82\x01.",
    "no end": b"\x80\x02}",
    "an empty stack": b"\x80\x02R.",
    "memory": b"\x80\x02h\xff.",
    "an array of another size": pickle.dumps(
        {
            "model": {},
            "a": Reduced(
                multiarray._reconstruct, (np.ndarray, (0,), b"b"), (1, (1 << 40,), np.dtype("i8"), 0, b"0" * 8)
            ),
        },
        protocol=2,
    ),
    "an array of objects": pickle.dumps({"model": {}, "a": np.array([os.getpid], dtype=object)}, protocol=2),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_checkpoints_are_refused(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = archive_with(tmp_path / "checkpoint.pt", HOSTILE[how])
    before = folder_content(tmp_path)
    with pytest.raises((ValueError, pickle.UnpicklingError), match=f"^{re.escape(str(checkpoint))} is "):
        checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    assert folder_content(tmp_path) == before


@pytest.mark.parametrize("name", ["encoder_embed_dim", "decoder_layers", "max_target_positions"])
@pytest.mark.parametrize("kind", ["args", "cfg"])
def test_sizes_that_would_take_all_memory_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    task = toy.task()
    model = toy.model(task)
    path = tmp_path / "checkpoint.pt"

    def save(value: int) -> None:
        options = Namespace(arch="ibdecoder", task="translation_interleaved", data="data", **{name: value})
        state = {"args": None, "cfg": None, "model": model.state_dict(), "task_state": {}}
        state |= {"extra_state": {"epoch": 1, "train_iterator": {}}, "optimizer_history": [{"lr_scheduler_state": {}}]}
        state[kind] = options if kind == "args" else {"model": options}
        torch.save(state, path)

    save(10**9)
    with pytest.raises(ValueError, match=rf"{path} is refused: it says {name} = 1000000000, and none of its tensors"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    save(1_000_000 if name.endswith("positions") else 64)  # which take no memory unless they are learned
    assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["model"].keys() == model.state_dict().keys()
