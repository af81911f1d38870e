"""Mistakes with model folders: one line that says what to do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
import torch
from conftest import System
from test_model_folders import folder_of

from amlp_fairseq import Translator


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
        (["--cpu"], "--cpu is not an option of decoding (--device cpu)"),
        (["--print-step"], "--print-step is not an option of decoding (amlp-fairseq options translation_interleaved "),
        (["--iter-decode-max-iter", "3"], "TranslationInterleavedTask does not support --iter-decode-max-iter 3"),
        (["--nbest", "9"], "nbest=9 is more than beam=4 finds: raise beam, or lower nbest"),
        (["--device", "cuda:99"], "device='cuda:99' cannot be used: "),
        (["--input", "/nothing"], "/nothing does not exist"),
        (
            ["--input", "/dev/null", "--output", "/dev/null"],
            "--output /dev/null is the text that is to be translated: ",
        ),
        (["--max-tokens", "0"], "argument --max-tokens: '0': a number from 1 is needed"),
        (["--long", "refuse", "--max-length", "2"], "line 2: 3 pieces, at most 2 are allowed: --long split, or a "),
    ],
)
def test_translate(words: list[str], message: str, model: Path) -> None:
    line = said("translate", "--model", model, *words, text="w1 w2\nw1 w2 w3\n")
    assert line.startswith(f"amlp-fairseq translate: {message}")


def test_damaged_folders(model: Path, tmp_path: Path) -> None:
    text = (model / "config.json").read_text(encoding="utf-8")
    config, weights = json.loads(text), (model / "model.safetensors").read_bytes()
    for name, content, message in (
        ("config.json", text[:100].encode(), "config.json is damaged: JSONDecodeError"),
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


def test_package_of_a_training_without_languages(system: Callable[[str], System], tmp_path: Path) -> None:
    """fairseq-train finds them in its data, and its checkpoint does not have them."""
    state = torch.load(system("ibdecoder").checkpoint, weights_only=False)
    data, task = Path(state["cfg"]["task"]["data"]), state["cfg"]["task"]
    task["source_lang"] = task["target_lang"] = None
    torch.save(state, tmp_path / "checkpoint.pt")
    words = ["package", tmp_path / "checkpoint.pt", "--out", tmp_path / "model", "--data"]
    assert said(*words, tmp_path) == (
        f"amlp-fairseq package: {tmp_path} does not say the languages: name the data folder of the training with --data"
    )
    commands.run("amlp_fairseq.cli.main", *words, data)
    assert Translator(tmp_path / "model").languages == ("en", "de")


def test_compare(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.en").write_text("w1\nw2\n", encoding="utf-8")
    (tmp_path / "text.de").write_text("w1\n", encoding="utf-8")
    files = ["--source", tmp_path / "text.en", "--reference", tmp_path / "text.de"]
    assert said("compare", "--model", model, *files).endswith("text.en has 2 lines, --reference "
                                                              f"{tmp_path}/text.de has 1")  # fmt: skip
    (tmp_path / "text.de").write_text("w1\nw2\n", encoding="utf-8")
    printed = commands.run("amlp_fairseq.cli.main", "compare", "--model", model, "--model", model, *files)
    assert "BLEU" in printed
    assert printed.count("│ model") == 2
