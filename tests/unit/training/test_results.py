"""The checksum of the data of a result, and tables for a terminal."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from amlp_fairseq.training.results import append_results, data_sha256, in_columns, read_results, run_missing, same_data

#: What str.splitlines takes for the end of a line, and JSON does not.
SEPARATORS = "\x85\u2028\u2029"
FILES = ("dict.en.txt", "dict.de.txt", "test.en-de.de.bin", "test.en-de.en.idx", "raw/test.de", "raw/test.en")
OTHERS = ("train.en-de.de.bin", "valid.en-de.de.bin", "raw/valid.de", "text.json", "manifest.json")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data/raw").mkdir(parents=True)
    for name in (*FILES, *OTHERS):
        (tmp_path / "data" / name).write_text(f"content of {name}", encoding="utf-8")
    return tmp_path / "data"


def test_the_same_data_elsewhere_have_the_same_checksum(data: Path, tmp_path: Path) -> None:
    before = data_sha256(data, "test")
    assert len(before) == 16
    for name in OTHERS:
        (data / name).write_text("other", encoding="utf-8")
    assert data_sha256(shutil.copytree(data, tmp_path / "elsewhere"), "test") == before
    assert data_sha256(data, "valid") != before


@pytest.mark.parametrize("name", FILES)
def test_other_data_have_another(name: str, data: Path) -> None:
    before = data_sha256(data, "test")
    (data / name).write_text("other", encoding="utf-8")
    changed = data_sha256(data, "test")
    (data / name).unlink()
    assert len({before, changed, data_sha256(data, "test")}) == 3


@pytest.mark.parametrize(
    ("line", "checksum", "expected"),
    [
        ({"data": "a", "data_sha256": "1"}, "1", True),
        ({"data": "b", "data_sha256": "1"}, "1", True),
        ({"data": "a", "data_sha256": "2"}, "1", False),
        ({"data": "a"}, "1", True),
        ({"data": "b"}, "1", False),
        ({"data": "a", "data_sha256": "2"}, None, True),
        ({}, "1", False),
    ],
)
def test_a_result_without_a_checksum_goes_by_its_name(
    line: dict[str, str], checksum: str | None, expected: bool
) -> None:
    assert same_data(line, checksum, "a") == expected


def test_separators_of_lines_are_characters(tmp_path: Path) -> None:
    results = [{"subset": f"a{separator}b", "split": "test"} for separator in SEPARATORS]
    append_results(tmp_path / "results.jsonl", results)
    assert read_results(tmp_path / "results.jsonl") == results


def test_columns_are_aligned() -> None:
    assert in_columns(["name", "BLEU"], [["ibdecoder", "7.50"], ["x", ""]]).splitlines() == [
        "| name      | BLEU |",
        "| --------- | ---- |",
        "| ibdecoder | 7.50 |",
        "| x         |      |",
    ]


@pytest.mark.parametrize("stored", [True, False])
def test_a_run_whose_result_is_known_is_not_repeated(stored: bool, tmp_path: Path) -> None:
    """In a file or in this call; the last of several results counts."""
    path, ran = tmp_path / "results.jsonl", []
    if stored:
        append_results(path, [{"seed": 1, "score": 5}, {"seed": 1, "score": 6}])

    def run(seed: int) -> dict[str, int]:
        ran.append(seed)
        return {"score": 10 * seed}

    runs = [({"seed": seed}, partial(run, seed)) for seed in (1, 2, 2)]
    scores = [line["score"] for line in run_missing(path if stored else None, runs)]
    assert scores == [6 if stored else 10, 20, 20]
    assert ran == ([2] if stored else [1, 2])
    if stored:
        assert [line["score"] for line in read_results(path)] == [5, 6, 20]
