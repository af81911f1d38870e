"""NAT with fertilities under fairseq's commands, from raw text with alignments to translations."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import commands
import pytest

pytestmark = pytest.mark.xdist_group("fertility-command-line")
TASK: list[Any] = ["--user-dir", commands.PLUGIN, "--task", "translation_cmlmc"]
LAST = "checkpoint_last.pt"


def sentence(rng: random.Random) -> tuple[str, str, str]:
    """A source, its target, in which word ``w<i>`` stands i mod 3 times, and the alignment."""
    words = [rng.randrange(9) for _ in range(rng.randint(2, 7))]
    words += [1] * all(word % 3 == 0 for word in words)
    pairs = [(i, word) for i, word in enumerate(words) for _ in range(word % 3)]
    links = [f"{i}-{t}" for t, (i, _) in enumerate(pairs)]
    return " ".join(f"w{word}" for word in words), " ".join(f"v{word}" for _, word in pairs), " ".join(links)


def train(data: Path, save: Path, *arguments: object, updates: int, check: bool = True) -> str:
    nat = [*commands.TRAINING]
    nat[nat.index("label_smoothed_cross_entropy")] = "fertility_nat_loss"
    return commands.run(
        *("fairseq_cli.train", data, *TASK, "--arch", "fertility_transformer_tiny", "--share-all-embeddings", *nat),
        *("--lr", 0.005, "--dropout", 0, "--max-tokens", 400, "--max-update", updates, "--save-dir", save),
        *("--no-epoch-checkpoints", *arguments),
        check=check,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, the binarised data, and a trained model."""
    path, rng = tmp_path_factory.mktemp("fertility"), random.Random(1)
    for split, count in {"train": 400, "valid": 10, "test": 30}.items():
        columns = zip(*(sentence(rng) for _ in range(count)), strict=True)
        for suffix, lines in zip(("src", "tgt", "align"), columns, strict=True):
            (path / f"{split}.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    commands.run(
        *("fairseq_cli.preprocess", "-s", "src", "-t", "tgt", "--destdir", path / "bin", "--joined-dictionary"),
        *("--trainpref", path / "train", "--validpref", path / "valid", "--testpref", path / "test"),
        *("--align-suffix", "align"),
    )
    log = train(path / "bin", path / "nat", "--load-alignments", "--validate-interval", 9, updates=60)
    (path / "log").write_text(log, encoding="utf-8")
    return path


def test_it_learns_what_is_left_out_and_what_is_doubled(folder: Path) -> None:
    generate: list[Any] = ["fairseq_cli.generate", folder / "bin", *TASK, "--path", folder / "nat" / LAST, "--cpu"]
    output = commands.run(*generate, "--print-step")
    expected = (folder / "test.tgt").read_text(encoding="utf-8").splitlines()
    assert [fields[-1] for _, fields in sorted(commands.lines(output, "H").items())] == expected
    assert set(map(tuple, commands.lines(output, "I").values())) == {("1",)}
    sampled = commands.lines(commands.run(*generate, "--iter-decode-with-beam", 4), "H")
    assert [fields[-1] for _, fields in sorted(sampled.items())] == expected


def test_both_losses_are_logged(folder: Path) -> None:
    (valid,) = [line for line in (folder / "log").read_text(encoding="utf-8").splitlines() if ":valid:" in line]
    losses = dict(part.split() for part in valid.split(" | ") if part.startswith(("word_ins ", "fertility ")))
    assert losses.keys() == {"word_ins", "fertility"}
    assert float(losses["fertility"]) < 0.1


def test_data_without_alignments_end_the_training_with_what_is_missing(folder: Path) -> None:
    last = train(folder / "bin", folder / "none", updates=1, check=False).splitlines()[-1]
    assert "needs alignments of the training and the validation set: fairseq-preprocess --align-suffix" in last
