"""Language models in the recipes: perplexity per word by hand, the rows of DynamicConv's Table 4, results in tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tolerance
import toy
from fairseq.data import Dictionary

from amlp_fairseq.evaluation import evaluate, parameters, reproduce
from amlp_fairseq.evaluation.perplexity import perplexity
from amlp_fairseq.evaluation.report import render
from amlp_fairseq.evaluation.tables import Results
from amlp_fairseq.training.config import load
from amlp_fairseq.training.data_folder import chosen_recipe
from amlp_fairseq.training.results import data_sha256

#: Words and their units: 5 and 3 with the ends of sentences, an empty line is one; "e" is unknown.
TEXT = {"abc d e f": "a bc d e f", "ab": "a b", "": ""}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose test set has 8 words and 10 units."""
    dictionary = Dictionary()
    for unit in "a b bc d f".split():
        dictionary.add_symbol(unit)
    dictionary.save(str(tmp_path / "dict.txt"))
    toy.binarise(tmp_path / "test", [dictionary.encode_line(units, add_if_not_exist=False) for units in TEXT.values()])
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/test.en").write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")
    return tmp_path


def log(tokens: str, loss: str) -> str:
    return f"x | Evaluated {tokens} tokens in 3.6s (2 tokens/s)\nx | Loss (base 2): {loss}, Perplexity: 1.00\n"


@pytest.mark.parametrize(("bits", "expected"), [("2.4000", 8.0), ("0.0000", 1.0), ("4.8000", 64.0)])
def test_bits_of_all_units_over_the_number_of_words(bits: str, expected: float, data: Path) -> None:
    """10 units of 2.4 bits are 24 bits: 3 for each of 8 words."""
    assert perplexity(log("10", bits), data, "test") == {
        "perplexity": expected,
        **{"sentences": 3, "words": 8, "tokens": 10, "unknown_tokens": 1},
    }


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        (log("1,009", "2.4000"), "evaluated 1009 tokens of test, which has 10"),
        (log("10", "nan"), "no loss that is a number"),
        ("", "no loss that is a number"),
        (
            "--- Logging error ---\nMessage: 'skipping tokens with inf scores:'\n" + log("10", "2.4000"),
            "probability zero",
        ),
    ],
)
def test_what_fairseq_leaves_out_is_refused(printed: str, message: str, data: Path) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity(printed, data, "test")


def test_the_dictionary_is_a_part_of_the_checksum(data: Path) -> None:
    before = data_sha256(data, "test")
    (data / "dict.txt").write_text("a 1\n", encoding="utf-8")
    assert data_sha256(data, "test") != before


def test_sizes_are_those_of_table_4() -> None:
    """331M and 339M."""
    recipes = [load(row, "billion_word", "paper") for row in ("lm_self_attention", "lm_dynamicconv")]
    found = {comparison.published: comparison.ours for comparison in parameters.comparisons(recipes)}
    assert found == {
        331.0: pytest.approx(331, abs=tolerance.printed(0)),
        339.0: pytest.approx(339, abs=tolerance.printed(0)),
    }


def test_training_is_that_of_the_paper() -> None:
    """Section 5.3."""
    recipe = load("lm_dynamicconv", "billion_word", "paper")
    training = {"optimizer": "nag", "momentum": 0.99, "clip-norm": 0.1, "lr": 1.0, "lr-scheduler": "cosine"}
    assert (training | {"warmup-updates": 16000, "max-update": 975000}).items() <= recipe.train.items()
    assert recipe.train["warmup-updates"] + recipe.train["lr-period-updates"] == recipe.train["max-update"]
    assert recipe.tokens_per_update == 32 * recipe.train["max-tokens"] == 65536
    kernels = [int(width) for width in recipe.train["decoder-kernel-size-list"].split(",")]
    assert (kernels, recipe.train["decoder-layers"]) == ([15] * 2 + [31] * 4 + [63] * 11, 17)


@pytest.mark.parametrize(
    ("row", "languages", "message"),
    [
        ("lm_dynamicconv", ["en", "de"], "--row lm_dynamicconv is a language model, DATA mine has pairs of sentences"),
        ("dynamicconv", ["en"], "--row dynamicconv is a translation model, DATA mine has text of one language"),
    ],
)
def test_rows_that_do_not_fit_the_data_are_refused(row: str, languages: list[str], message: str) -> None:
    text = {"name": "mine", "corpus": "", "languages": languages}
    with pytest.raises(ValueError, match=message):
        chosen_recipe(row, "embedded_lm", text)


def test_scales_of_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="--scale embedded is for models with an encoder; for language models"):
        chosen_recipe("lm_dynamicconv", "embedded", {"name": "mine", "corpus": "", "languages": ["en"]})


@pytest.mark.parametrize(
    ("corpus", "table", "rows"),
    [
        ("embedded_lm", "dynamicconv", {"lm_self_attention", "lm_dynamicconv"}),
        ("embedded_lm", "ibdecoder", set()),
        ("embedded_summaries", "dynamicconv", {"self_attention", "lightconv", "dynamicconv"}),
    ],
)
def test_rows_of_a_table(corpus: str, table: str, rows: set[str], tmp_path: Path) -> None:
    reproduction = reproduce.Reproduction(corpus, corpus, tmp_path, tmp_path / "r.jsonl", table)
    assert set(reproduction.rows()) == rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "ibdecoder"], "--table ibdecoder: none of its rows is of what --corpus embedded_lm is for"),
        (
            ["--table", "dynamicconv", "--targets", "distilled"],
            "--targets distilled: embedded_lm is for language models",
        ),
    ],
)
def test_what_cannot_be_reproduced(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["reproduce", "--corpus", "embedded_lm", "--scale", "embedded_lm", *words])
    with pytest.raises(SystemExit):
        reproduce.main()
    assert message in capsys.readouterr().err


def line(system: str, perplexity: float, **other: Any) -> dict[str, Any]:
    facts = {"data": "billion_word", "scale": "paper", "system": system, "distilled": False, "decoding": "sentences"}
    facts |= {"seed": 1, "split": "test", "perplexity": perplexity, "parameters": 2500000, "updates": 7}
    return facts | other


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_results_stand_beside_the_paper() -> None:
    lines = [line("lm_self_attention", 27.0), line("lm_dynamicconv", 26.5), line("lm_dynamicconv", 26.7, split="valid")]
    results = Results(lines)
    assert rows_of(results.overview())[0][4:] == ["perplexity", "parameters", "updates"]
    (table,) = results.comparisons().items()
    assert table[0] == "dynamicconv 4"
    found = {(row[0], row[7]): (row[3], row[5], row[8]) for row in rows_of(table[1].split("\n\n")[0])[2:]}
    assert found == {
        ("Self-attention baseline", "per-word"): ("27.00", "26.73", "+0.27"),
        ("Self-attention baseline", "per-word, valid"): ("—", "26.67", ""),
        ("DynamicConv", "per-word"): ("26.50", "26.67", "-0.17"),
        ("DynamicConv", "per-word, valid"): ("26.70", "26.6", "+0.10"),
    }
    assert rows_of(results.orderings())[2][2:] == ["+0.50", "reproduced, close and of 1 seed(s)"]


def test_on_the_page_and_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    lines = [line("lm_self_attention", 27.0), line("lm_dynamicconv", 26.5)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    page = render([path]).partition("<main>")[2]
    assert "27.00" in page
    assert "BLEU" not in page
    assert rows_of(evaluate.table(lines))[0] == ["configuration", "targets", "decoding", "split", "perplexity"]
