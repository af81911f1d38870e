"""Mistakes with model folders: one line that says what to do."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
import torch
from small_systems import System
from test_model_folders import folder_of

from amlp_fairseq import Translator
from amlp_fairseq.common.renamed_options import with_present_names
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.translator import text_shards as shards
from amlp_fairseq.translator.files import check_files, refuse_compressed


@pytest.fixture(scope="module")
def model(system: Callable[[str], System], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(system("ibdecoder"), tmp_path_factory.mktemp("models") / "model")


def said(*words: object, text: str = "") -> str:
    """The last line of a command that fails, which prints no traceback."""
    printed = commands.run("amlp_fairseq.cli.main", *words, text=text, check=False)
    assert "Traceback" not in printed
    return printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--beam", "x"], "argument --beam: invalid int value: 'x' (all options: amlp-fairseq translate --help)"),
        (["--ouput", "x"], "--ouput is unknown; did you mean --output? (all options: amlp-fairseq translate --help)"),
        (["--bean", "3"], "--bean is unknown; did you mean --beam? (all options: amlp-fairseq translate --help)"),
        (["--num-workers", "2"], "--num-workers is not an option of decoding (amlp-fairseq options "),
        (["--print-step"], "--print-step is not an option of decoding (amlp-fairseq options translation_interleaved "),
        (["--iter-decode-max-iter", "3"], "--task translation_interleaved does not have --iter-decode-max-iter 3"),
        (["--nbest", "2"], "--nbest 2 needs --jsonl: "),
        (["--print-alignment"], "--print-alignment needs --jsonl: "),
        (["--nbest", "9", "--jsonl"], "nbest=9 is more than beam=4 finds: raise beam, or lower nbest"),
        (["--device", "cuda:99"], "device='cuda:99' cannot be used: "),
        (["--input", "/nothing"], "/nothing does not exist"),
        (
            ["--task", "translation"],
            "--task translation: the model decodes with translation_interleaved, leave --task ",
        ),
        (["--max-tokens", "0"], "argument --max-tokens: '0': a number from 1 is needed"),
        (["--long", "refuse", "--max-length", "2"], "line 2: 3 pieces, at most 2 are allowed: --long split, or a "),
    ],
)
def test_translate(words: list[str], message: str, model: Path) -> None:
    line = said("translate", "--model", model, *words, text="w1 w2\nw1 w2 w3\n")
    assert line.startswith(f"amlp-fairseq translate: {message}")


COMPRESSED = {
    "text.gz": (gzip.compress(b"w1\n"), "gunzip"),
    "text": (gzip.compress(b"w1\n"), "gunzip"),
    "text.bz2": (bz2.compress(b"w1\n"), "bunzip2"),
    "text.xz": (lzma.compress(b"w1\n"), "unxz"),
    "text.zst": (b"\x28\xb5\x2f\xfd\x04\x58\x19\x00\x00w1\n", "unzstd"),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_text(name: str, tmp_path: Path) -> None:
    """Whatever its name is: not translated as if it were text, nor as a shard."""
    content, program = COMPRESSED[name]
    path = tmp_path / name
    path.write_bytes(content)
    message = f"{path} is compressed: unpack it first ({program} < {path} > TEXT)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_files(path, tmp_path / "out")
    shard, job = shards.Shard(path, tmp_path / "out"), shards.Job(tmp_path, {}, jsonl=False, buffer_size=1)
    assert shards.translate(None, shard, job) == shards.Outcome(name, error=message)  # type: ignore[arg-type]


def test_compressed_standard_input(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(gzip.compress(b"w1\n"))
    words = ["translate", "--model", model, "--output", tmp_path / "out"]
    child = commands.start("amlp_fairseq.cli.main", *words, source=tmp_path / "text", errors=tmp_path / "printed")
    child.join()
    last = (tmp_path / "printed").read_text(encoding="utf-8").splitlines()[-1]
    assert last.endswith(": standard input is compressed: unpack it first (gunzip < FILE > TEXT)")
    assert not (tmp_path / "out").exists()


def test_pipes_are_left_alone(tmp_path: Path) -> None:
    """What is read of one is gone, and opening one waits for its writer."""
    os.mkfifo(tmp_path / "text.gz")
    refuse_compressed(tmp_path / "text.gz")


@pytest.mark.parametrize("kind", ["--input", "a hard link", "standard input", "both standard"])
def test_the_text_is_not_overwritten(kind: str, model: Path, tmp_path: Path) -> None:
    source, printed, text = tmp_path / "text", tmp_path / "printed", "w1 w2\nw3\n"
    source.write_text(text, encoding="utf-8")
    (tmp_path / "link").hardlink_to(source)
    words, files = {
        "--input": (["--input", source, "--output", source], {}),
        "a hard link": (["--input", source, "--output", tmp_path / "link"], {}),
        "standard input": (["--output", source], {"source": source}),
        "both standard": ([], {"source": source, "output": source}),
    }[kind]
    child = commands.start("amlp_fairseq.cli.main", "translate", "--model", model, *words, errors=printed, **files)
    child.join()
    assert child.exitcode == 1
    assert source.read_text(encoding="utf-8") == text
    name = f"--output {words[-1]}" if words else "standard output"
    message = f"amlp-fairseq translate: {name} is the text that is to be translated: name another file"
    assert printed.read_text(encoding="utf-8").splitlines()[-1] == message


def test_the_output_stays_where_there_is_no_text(model: Path, tmp_path: Path) -> None:
    (tmp_path / "output").write_text("before\n", encoding="utf-8")
    words = ["--input", "/nothing", "--output", tmp_path / "output"]
    assert said("translate", "--model", model, *words) == "amlp-fairseq translate: /nothing does not exist"
    assert (tmp_path / "output").read_text(encoding="utf-8") == "before\n"


@pytest.mark.parametrize(
    ("closed", "message"),
    [
        (">&-", "standard output is closed: give it a file, or > /dev/null"),
        ("<&-", "standard input is closed: name the text with --input FILE"),
    ],
)
def test_closed_files(closed: str, message: str, model: Path) -> None:
    line = f'"$0" -m amlp_fairseq translate --model "$1" < /dev/null {closed}'
    done = commands.fresh("bash", "-c", line, sys.executable, model, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"amlp-fairseq translate: {message}"]


def test_closed_standard_error(model: Path) -> None:
    """Takes nothing away from the output."""
    line = 'echo w1 w2 | "$0" -m amlp_fairseq translate --model "$1" 2>'
    with_it, without = (commands.fresh("bash", "-c", line + end, sys.executable, model) for end in ("/dev/null", "&-"))
    assert with_it.stdout == without.stdout != ""


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["latin-1", "ascii"],
)
def test_output_is_utf8(environment: dict[str, str], model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("w1 é “w2”\n", encoding="utf-8")
    words = ["translate", "--model", model, "--jsonl", "--input", tmp_path / "text"]
    done = commands.fresh("amlp_fairseq", *words, env=environment, encoding="utf-8")
    assert json.loads(done.stdout.splitlines()[-1])["source"] == "w1 é “w2”"


def test_damaged_folders(model: Path, tmp_path: Path) -> None:
    text = (model / "config.json").read_text(encoding="utf-8")
    config, weights = json.loads(text), (model / "model.safetensors").read_bytes()
    for name, content, message in (
        ("config.json", text[:100].encode(), "config.json is damaged"),
        ("config.json", json.dumps(config | {"format": 2}).encode(), "config.json has format 2; this version"),
        ("config.json", b'{"format": 1}', "config.json is damaged: it has no languages"),
        ("model.safetensors", weights[:-1], "model.safetensors is damaged: "),
        ("model.safetensors", b"", "model.safetensors is damaged: "),
    ):
        damaged = tmp_path / "damaged"
        shutil.copytree(model, damaged)
        (damaged / name).write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(message)):
            Translator(damaged)
        shutil.rmtree(damaged)
    shutil.copytree(model, tmp_path / "en:de")
    with pytest.raises(ValueError, match=r"en:de: rename it without ':', at which fairseq splits paths"):
        Translator(tmp_path / "en:de")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty is not the folder of a model: it has no config\.json"):
        Translator(tmp_path / "empty")


def test_folders_hold_data_alone(model: Path, tmp_path: Path) -> None:
    """A pickle in place of the weights is not opened."""
    hostile = tmp_path / "hostile"
    shutil.copytree(model, hostile)
    torch.save({"model": torch.zeros(1)}, hostile / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        Translator(hostile)


def test_package(system: Callable[[str], System], model: Path, tmp_path: Path) -> None:
    checkpoint = system("ibdecoder").checkpoint
    out = ["--out", tmp_path / "new"]
    assert said("package", "/nothing.pt", *out) == (
        "amlp-fairseq package: CHECKPOINT /nothing.pt: there is no such file"
    )
    assert said("package", checkpoint, "--out", model).startswith(f"amlp-fairseq package: --out {model} exists already")
    assert said("package", checkpoint, *out, "--data", tmp_path).startswith(
        f"amlp-fairseq package: there is no dictionary {tmp_path}/dict.en.txt: name the data folder"
    )
    assert "--decoding 'beam 5' is not in the recipe; it has beam 4" in said(
        "package", checkpoint, *out, "--decoding", "beam 5"
    )
    assert said("package", checkpoint, *out, "--post-process", "sentencepiece").startswith(
        "amlp-fairseq package: there is no subword model"
    )
    assert not (tmp_path / "new").exists()


def test_package_of_a_folder_keeps_its_text_and_decoding(tmp_path: Path) -> None:
    model = commands.ROOT / "examples/models/ibdecoder"
    commands.run("amlp_fairseq.cli.main", "package", model, "--out", tmp_path / "new", "--weights", "int8")
    own, new = (
        json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in (model, tmp_path / "new")
    )
    assert set(new.pop("checksums").items()) - set(own.pop("checksums").items()) == {
        ("model.safetensors", hashlib.sha256((tmp_path / "new/model.safetensors").read_bytes()).hexdigest())
    }
    assert new == with_present_names(own) | {"weights": "int8"}
    text = ["The doctor is sixty years old."]
    assert Translator(tmp_path / "new").translate(text) == ["Der Arzt ist sechzig Jahre alt."]
    commands.run("amlp_fairseq.cli.main", "package", model, "--out", tmp_path / "greedy", "--beam", 1)
    greedy = json.loads((tmp_path / "greedy/config.json").read_text(encoding="utf-8"))
    assert greedy == read_config(model) | {"decoding": own["decoding"] | {"beam": 1}}


def test_package_of_a_training_without_languages(system: Callable[[str], System], tmp_path: Path) -> None:
    """fairseq-train finds them in its data, and its checkpoint does not have them."""
    state = torch.load(system("ibdecoder").checkpoint, weights_only=False)
    data, task = Path(state["cfg"]["task"]["data"]), state["cfg"]["task"]
    task["source_lang"] = task["target_lang"] = None
    torch.save(state, tmp_path / "checkpoint.pt")
    words = ["package", tmp_path / "checkpoint.pt", "--out", tmp_path / "model", "--data"]
    assert said(*words, tmp_path) == (
        f"amlp-fairseq package: {tmp_path} does not say the languages: name them with --source-lang and --target-lang, "
        "or the data folder of the training with --data"
    )
    commands.run("amlp_fairseq.cli.main", *words, data)
    assert Translator(tmp_path / "model").languages == ("en", "de")


def test_compare(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.en").write_text("w1\nw2\n", encoding="utf-8")
    (tmp_path / "text.de").write_text("w1\n", encoding="utf-8")
    files = ["--source", tmp_path / "text.en", "--reference", tmp_path / "text.de"]
    assert said("compare", "--model", model, *files).endswith("text.en has 2 lines, --reference "
                                                              f"{tmp_path}/text.de has 1")  # fmt: skip
    assert "has 2 lines" in said("compare", "--model", model, *files, "--sentences", 1)
    (tmp_path / "text.de").write_text("w1\nw2\n", encoding="utf-8")
    printed = commands.run("amlp_fairseq.cli.main", "compare", "--model", model, "--model", model, *files)
    assert "BLEU" in printed
    assert printed.count("│ model") == 2
