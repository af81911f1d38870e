"""What the data of a training say: from which length a sentence is too long, and how words were cut up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from omegaconf import OmegaConf
from subword_nmt.apply_bpe import BPE

from amlp_fairseq.compat.internals import indexed_dataset
from amlp_fairseq.text.subwords import learn
from amlp_fairseq.translator import training_data


def write(data: Path, name: str, sentences: list[list[int]]) -> None:
    prefix = str(data / name)
    builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", 100)
    for sentence in sentences:
        builder.add_item(torch.tensor(sentence))
    builder.finalize(f"{prefix}.idx")


def pairs(data: Path, lengths: list[tuple[int, int]], split: str = "train") -> None:
    """A training set with these numbers of pieces; each sentence also has an end symbol."""
    for side, language in enumerate(("en", "de")):
        write(data, f"{split}.en-de.{language}", [[4] * pair[side] + [2] for pair in lengths])


def longest(data: Path, languages: str = "en de", truncate: bool = False, positions: int = 1024) -> int | None:
    task = {"max_source_positions": positions, "max_target_positions": positions, "truncate_source": truncate}
    cfg = OmegaConf.create({"task": task, "model": {}, "dataset": {"max_tokens": 800}})
    return training_data.longest_source([data], languages.split(), cfg)


def test_the_longest_source_of_a_training(tmp_path: Path) -> None:
    """By hand: of 3,000 pairs that are kept, three may have longer sources."""
    assert longest(tmp_path) is None
    kept = [(10, 10)] * 2996 + [(20, 9), (30, 9), (40, 9), (799, 9)]
    skipped = [(100_000, 9), (800, 9), (50, 800)] * 20
    pairs(tmp_path, kept + skipped)
    assert longest(tmp_path) == 20
    assert longest(tmp_path, "de en") == 10
    assert longest(tmp_path, positions=40) == 10  # of 2,998 pairs two may have longer ones
    pairs(tmp_path, [(60, 10)] * 10, "train1")
    assert longest(tmp_path) == 60
    pairs(tmp_path, [(50, 9), (100_000, 9)], "train1")
    assert longest(tmp_path, truncate=True, positions=700) == 699


def dictionary(path: Path, symbols: list[str]) -> Path:
    words = Dictionary()
    for symbol in symbols:
        words.add_symbol(symbol)
    words.finalize(padding_factor=8)
    words.save(str(path))
    return path


@pytest.mark.parametrize(
    ("symbols", "kind"),
    [
        (["▁", "@@", *(f"word{number}" for number in range(300)), *map(str, range(300))], None),
        (["▁the", "c", "at", "▁cats"], "sentencepiece"),
        (["the", "c@@", "at", "cats"], "subword_nmt"),
        ([str(number) for number in range(500)], "GPT-2"),
    ],
)
def test_marks_of_pieces(symbols: list[str], kind: str | None, tmp_path: Path) -> None:
    assert training_data.marked(dictionary(tmp_path / "dict.txt", symbols)) == kind


def test_a_subword_model_that_cuts_otherwise(tmp_path: Path) -> None:
    """A smaller one of the same text, and a larger one, whose pieces only the text shows to be unknown."""
    stems = ["walk", "talk", "jump", "laugh", "climb", "sleep", "paint", "read", "sing", "point"]
    text = [" ".join(stem + end for end in ("", "s", "ed", "ing", "er", "ers")) for stem in stems] * 5
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    for size in (10, 40, 60):
        learn("subword_nmt", [tmp_path / "text"], tmp_path / f"codes{size}", size, 1.0, 0)
    with open(tmp_path / "codes40", encoding="utf-8") as codes:
        cut = [BPE(codes).process_line(line).split() for line in text]
    words = Dictionary.load(str(dictionary(tmp_path / "dict.txt", [piece for line in cut for piece in line])))
    for language in ("en", "de"):
        write(tmp_path, f"train.en-de.{language}", [[*map(words.index, line), words.eos()] for line in cut])
    dictionaries = dict.fromkeys(("en", "de"), tmp_path / "dict.txt")

    def check(size: int) -> None:
        training_data.check_subword_model(
            "subword_nmt", [tmp_path / f"codes{size}"] * 2, dictionaries, tmp_path, ["en", "de"]
        )

    check(40)
    with pytest.raises(ValueError, match=r"codes10 is not that of .*dict\.txt: it leaves \d+ of \d+ words whole"):
        check(10)
    with pytest.raises(ValueError, match=r"codes60 is not that of .* pieces of which \d+ are unknown there"):
        check(60)
