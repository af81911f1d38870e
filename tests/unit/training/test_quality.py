"""BLEU of a few sentences while a model trains: what fairseq-generate and sacreBLEU say, and nothing else changes."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
from pathlib import Path

import commands
import pytest
import tolerance
import torch
from sacrebleu.metrics import BLEU

from amlp_fairseq.training import quality, train

SYSTEMS = {
    "translation": "--task translation --arch plugin_transformer_tiny --criterion cross_entropy",
    "translation_interleaved": "--task translation_interleaved --arch ibdecoder_tiny --criterion cross_entropy",
    "translation_cmlmc": "--task translation_cmlmc --arch cmlmc_transformer_tiny --criterion nat_loss",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of the same words, which are learnt at once."""
    folder = tmp_path_factory.mktemp("quality")
    rng = random.Random(1)
    (folder / "raw").mkdir()
    for split, count in (("train", 60), ("valid", 8), ("test", 3)):
        lines = "".join(" ".join(rng.choices("abcde", k=rng.randint(4, 7))) + "\n" for _ in range(count))
        for language in ("en", "de"):
            (folder / f"raw/{split}.{language}").write_text(lines, encoding="utf-8")
    commands.preprocess(folder / "raw", folder / "data")
    shutil.copytree(folder / "raw", folder / "data/raw")
    (folder / "data/text.json").write_text(json.dumps({"post_process": None, "tokenizer": None}), encoding="utf-8")
    return folder / "data"


def trained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: float, task: str, data: Path, folder: Path
) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The messages of a training of some updates, and the weights that it leaves."""
    monkeypatch.setattr(quality, "FIRST", first)
    monkeypatch.setattr(quality, "SHARE", 1e9)
    monkeypatch.setattr(quality, "SENTENCES", 5)
    monkeypatch.setattr("sys.argv", ["amlp-fairseq train"])
    words = f"{SYSTEMS[task]} --optimizer adam --lr 0.01 --batch-size 20 --cpu --seed 1 --num-workers 0 --max-update 8"
    caplog.clear()
    with caplog.at_level(logging.INFO, logger=quality.logger.name):
        train.run([str(data), *words.split(), "--disable-validation", "--save-dir", str(folder)])
    found = [record.getMessage() for record in caplog.records if record.name == quality.logger.name]
    return found, torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"]


@pytest.mark.parametrize("task", SYSTEMS)
def test_signs_of_quality(
    task: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said, weights = trained(monkeypatch, caplog, 0.0, task, data, tmp_path / "signs")
    silent, expected = trained(monkeypatch, caplog, 1e9, task, data, tmp_path / "without")
    assert silent == []
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    signs = [re.fullmatch(r"BLEU ([\d.]+) on the first 5 .* after (\d+) updates", line) for line in said]
    assert [sign and sign[2] for sign in signs] == [str(update) for update in range(1, 9)]
    options = ["--max-len-a", 1.5, "--max-len-b", 10, "--beam", 1]
    if task == "translation_cmlmc":
        options = ["--iter-decode-max-iter", 4]
    printed = commands.run(
        *("amlp_fairseq.cli.main", "generate", data, "--path", tmp_path / "signs/checkpoint_last.pt", "--task", task),
        *("--gen-subset", "valid", "--cpu", *options),
    )
    found = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", printed, flags=re.MULTILINE))
    references = (data / "raw/valid.de").read_text(encoding="utf-8").splitlines()[:5]
    bleu = BLEU().corpus_score([found[str(number)] for number in range(5)], [references]).score
    assert signs[-1] is not None
    assert float(signs[-1][1]) == pytest.approx(bleu, abs=tolerance.printed(1))


def test_a_training_goes_on_without_a_sign(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = shutil.copytree(data, tmp_path / "damaged")
    (damaged / "text.json").write_text("{", encoding="utf-8")
    (said,) = trained(monkeypatch, caplog, 0.0, "translation", damaged, tmp_path / "of damaged")[0]
    assert str(damaged / "text.json") in said
    (damaged / "text.json").unlink()
    assert trained(monkeypatch, caplog, 0.0, "translation", damaged, tmp_path / "of fairseq-preprocess")[0] == []
