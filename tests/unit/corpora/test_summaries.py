"""Corpora of summaries: the made-up one, their configurations, and results with ROUGE in tables and on the page."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from amlp_fairseq.corpora import embedded_summaries as summaries
from amlp_fairseq.corpora.embedded_corpus import NP, Clause, Phrase, Sentence
from amlp_fairseq.evaluation import evaluate, reproduce
from amlp_fairseq.evaluation.report import render
from amlp_fairseq.evaluation.tables import Results
from amlp_fairseq.training.config import load, read, save
from amlp_fairseq.training.distill import default_ratio, verdict

TODAY = Phrase("today", "heute")
BUY = Clause(NP("doctor", adj="tall"), "buy", "perfect", NP("book", "a"), time=TODAY, front="time")
BOUGHT = {"the doctor bought a book today .", "today the doctor bought a book ."}
SUMMARISED = [
    (Sentence(BUY), BOUGHT),
    (Sentence(BUY, "because", Clause(NP(pron="it"), "rain")), BOUGHT),
    (Sentence(Clause(NP("child"), "sleep", "must"), matrix="he says"), {"the child must sleep ."}),
]


@pytest.mark.parametrize(("sentence", "expected"), SUMMARISED)
def test_a_summary_is_the_main_clause_in_other_words(sentence: Sentence, expected: set[str]) -> None:
    assert {summaries.summary(sentence, random.Random(seed)) for seed in range(9)} == expected


def test_documents_have_one_sentence_that_mentions_the_keyword() -> None:
    made = summaries.generate(seed=3, train=200, valid=20, test=20)
    assert [len(made[name]) for name in ("train", "valid", "test")] == [200, 20, 20]
    positions = set()
    for source, target in made["train"]:
        keyword, colon, *words = source.split()
        sentences = " ".join(words).removesuffix(" .").split(" . ")
        said = [number for number, text in enumerate(sentences) if summaries.mentions(text, plain(keyword))]
        assert (colon, len(sentences), len(said)) == (":", summaries.SENTENCES, 1)
        assert summaries.mentions(target, plain(keyword))
        assert target.endswith(" .")
        positions |= set(said)
    assert positions == set(range(summaries.SENTENCES))
    sources = [{source for source, _ in made[name]} for name in made]
    assert not sources[0] & sources[1]
    assert not sources[0] & sources[2]
    assert not sources[1] & sources[2]
    assert made == summaries.generate(seed=3, train=200, valid=20, test=20)


def plain(keyword: str) -> str:
    """The entry of the lexicon."""
    return next(name for name, noun in summaries.NOUNS.items() if noun.singular == keyword)


def test_the_corpus_chooses_the_metric(tmp_path: Path) -> None:
    """And which of a row's numbers stand beside results: on the corpus, or on the first with the same metric."""
    found = {data: load("ibdecoder", data, "embedded") for data in ("embedded", "embedded_summaries", "cnn_dailymail")}
    assert [recipe.metric for recipe in found.values()] == ["bleu", "rouge", "rouge"]
    numbers = {
        data: {(entry["data"], "rouge" in entry) for entry in recipe.published} for data, recipe in found.items()
    }
    assert numbers == {
        "embedded": {("wmt14_en_de", False)},
        "embedded_summaries": {("gigaword", True)},
        "cnn_dailymail": {("cnn_dailymail", True)},
    }
    save(found["cnn_dailymail"], tmp_path / "recipe.yaml")
    assert read(tmp_path / "recipe.yaml") == found["cnn_dailymail"]
    older = yaml.safe_load((tmp_path / "recipe.yaml").read_text(encoding="utf-8"))
    del older["metric"], older["tune_max_len"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(older), encoding="utf-8")
    assert read(tmp_path / "recipe.yaml").metric == "bleu"


def test_settings_of_dynamicconv() -> None:
    """Sections 5.2, 5.3 and 6.4."""
    recipe = load("dynamicconv", "cnn_dailymail_anonymised", "paper")
    training = {"weight-decay": 0.001, "dropout": 0.3, "warmup-updates": 10000, "lr-period-updates": 20000}
    assert (training | {"lr-scheduler": "cosine"}).items() <= recipe.train.items()
    assert recipe.generate == {"beam 5": {"beam": 5, "no-repeat-ngram-size": 3}}
    assert len(recipe.tune_max_len) > 1
    assert {entry["kind"]: entry["rouge"] for entry in recipe.published} == {
        **{"rouge-1": 39.84, "rouge-2": 16.25, "rouge-l": 36.73},
    }


def test_distillation_keeps_what_is_short(tmp_path: Path) -> None:
    """A summary has a few words of hundreds; a translation of so few is a mistake."""
    kept = {}
    for corpus in ("multi30k", "cnn_dailymail_anonymised", "", "embedded_summaries"):
        (tmp_path / "text.json").write_text(json.dumps({"corpus": corpus}), encoding="utf-8")
        kept[corpus] = verdict(400, 50, default_ratio(tmp_path))
    assert kept == {"multi30k": "ratio", "cnn_dailymail_anonymised": "kept", "": "ratio", "embedded_summaries": "kept"}
    assert verdict(400, 50, default_ratio(tmp_path / "without text.json")) == "ratio"
    assert verdict(400, 0, None) == "empty"


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("ibdecoder", {"transformer", "ibdecoder", "ibdecoder_sa"}),
        ("dynamicconv", {"self_attention", "lightconv", "dynamicconv"}),
    ],
)
def test_rows_of_a_table(table: str, rows: set[str], tmp_path: Path) -> None:
    name = "embedded_summaries"
    reproduction = reproduce.Reproduction(name, name, tmp_path, tmp_path / "r.jsonl", table)
    assert set(reproduction.rows()) == rows


def line(system: str, rouge: float, **other: Any) -> dict[str, Any]:
    facts = {"data": "cnn_dailymail", "scale": "paper", "system": system, "distilled": False, "decoding": "beam 4"}
    facts |= {"seed": 1, "split": "test", "rouge_1": rouge + 3, "rouge_2": rouge / 2, "rouge_l": rouge}
    facts |= {"rouge_signature": "by hand", "steps_per_sentence": 10.0, "parameters": 2500000, "updates": 7}
    return facts | other


def cells(table: str, *start: str) -> list[str]:
    """The cells of the one row of a Markdown table that begins with these."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    (found,) = [row for row in rows if row[: len(start)] == list(start)]
    return found


def test_results_stand_beside_the_papers() -> None:
    lines = [line("ibdecoder", 36.0), line("ibdecoder", 36.5, distilled=True), line("transformer", 37.0)]
    results = Results(lines)
    assert results.overview().splitlines()[0].split(" | ")[4:8] == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "calls"]
    assert cells(results.overview(), "transformer", "raw")[4:7] == ["40.00", "18.50", "37.00"]
    table = results.comparisons()["ibdecoder 6"]
    assert cells(table, "row")[3:8] == ["ROUGE", "distilled", "paper: ROUGE", "paper: distilled", "kind"]
    row = cells(table, "IBDecoder", "ibdecoder", "beam 4")
    assert row[3:10] == ["36.00", "36.50", "36.11", "36.46", "rouge-l", "-0.11", "+0.04"]
    assert [row.split(" | ")[0] for row in results.orderings().splitlines()[2:]] == ["| ibdecoder 6"] * 2
    assert "- rouge signature: by hand" in results.notes()


def test_each_kind_of_rouge_is_compared_with_its_own() -> None:
    lines = [line("dynamicconv", 36.80, data="cnn_dailymail_anonymised", decoding="beam 5")]
    table = Results(lines).comparisons()["dynamicconv 5"]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    assert {row[7]: row[8] for row in rows} == {"rouge-1": "-0.04", "rouge-2": "+2.15", "rouge-l": "+0.07"}


def test_on_the_page_and_on_a_terminal(tmp_path: Path) -> None:
    lines = [line("ibdecoder", 36.0, steps_per_sentence=20.0), line("transformer", 37.0, steps_per_sentence=60.0)]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    page = render([path])
    assert "1.00 ROUGE-L below the best, transformer (beam 4)" in page
    assert "↑ ROUGE-L" in page
    assert "BLEU" not in page.partition("<main>")[2]
    assert cells(evaluate.table(lines), "transformer", "raw", "beam 4", "test")[4:7] == ["40.00", "18.50", "37.00"]
