"""scripts/make_tables.py: means, differences of like with like, and whether the papers' orderings hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest

make_tables = commands.load_script("make_tables")
RESULTS = commands.ROOT / "docs/results"


def line(system: str, bleu: float, **other: Any) -> dict[str, Any]:
    facts = {
        **{"dataset": "wmt14_en_de", "system": system, "distilled": False, "decoding": "beam 4", "seed": 1},
        **{"bleu": bleu, "tokenised_bleu": bleu + 0.5, "compound_split_bleu": bleu + 1, "chrf": 50.0, "device": "C"},
        **{"steps_per_sentence": 10.0, "milliseconds_per_sentence": 20.0, "parameters": 2500000, "updates": 7},
        "training_seconds": 90,
    }
    return facts | other


def cells(table: str, *start: str) -> list[str]:
    """The cells of the one row of a Markdown table that begins with these."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    (found,) = [row for row in rows if row[: len(start)] == list(start)]
    return found


def test_seeds_are_averaged_and_the_last_result_counts() -> None:
    lines = [line("ibdecoder", bleu, seed=seed) for seed, bleu in ((1, 99.0), (2, 26.0), (3, 28.0), (1, 24.0))]
    results = make_tables.Results(lines)
    assert cells(results.overview(), "ibdecoder", "raw", "beam 4")[3] == "26.00 ± 2.00 (3)"


def test_differences_are_of_one_kind_of_bleu() -> None:
    """Table 1 of the IBDecoder paper is detokenised, the AAN poster tokenised, DynamicConv's compound-split."""
    lines = [
        line("transformer", 27.0),
        line("transformer", 27.5, distilled=True),
        line("dynamicconv_glu", 29.0, decoding="beam 5"),
        line("cmlmc", 28.0, decoding="10 iterations"),
        line("dynamicconv", 26.0, decoding="beam 5"),
    ]
    tables = make_tables.Results(lines).comparisons()
    row = cells(tables["ibdecoder 1"], "Transformer", "transformer", "beam 4")
    assert row[3:] == ["27.00", "27.50", "26.9", "27.3", "+0.10"]
    assert cells(tables["aan"], "Transformer")[-1] == "+1.13"  # 27.5 - 26.37
    assert cells(tables["dynamicconv 1"], "DynamicConv")[-1] == "+0.30"  # 30 - 29.7
    assert cells(tables["amlp 3"], "CMLMC")[-1] == "CMLMC: BLEU of kind 'unstated' is not comparable"
    assert cells(tables["dynamicconv 3"], "+ Dynamic weights (DynamicConv)")[-1].endswith(
        "kind 'validation' is not comparable"
    )


def test_other_data_are_not_compared_with_a_paper() -> None:
    results = make_tables.Results([line("transformer", 85.0, dataset="embedded")])
    assert cells(results.comparisons()["ibdecoder 1"], "Transformer")[-3:] == ["26.9", "27.3", ""]


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ([26.0, 24.1], "+1.90", "reproduced"),
        ([26.0, 27.5], "-1.50", "not reproduced"),
        ([26.0, 25.5], "+0.50", "reproduced, close and of 1 seed(s)"),
    ],
)
def test_orderings(values: list[float], margin: str, verdict: str) -> None:
    lines = [line(system, bleu) for system, bleu in zip(["ibdecoder", "vanilla_sa_2"], values, strict=True)]
    table = make_tables.Results(lines).orderings()
    assert cells(table, "ibdecoder 2")[1:] == ["vanilla SA is below IBDecoder at z = 2", margin, verdict]


def test_three_seeds_are_enough() -> None:
    lines = [
        line(system, bleu + seed / 10, seed=seed)
        for system, bleu in (("ibdecoder", 26.5), ("vanilla_sa_2", 26.0))
        for seed in (1, 2, 3)
    ]
    assert cells(make_tables.Results(lines).orderings(), "ibdecoder 2")[2:] == ["+0.50", "reproduced"]


def test_gap_between_teacher_and_student() -> None:
    """27 - 24 without distillation, 28 - 27.5 with it."""
    values = {("transformer", False): 27.0, ("ibdecoder", False): 24.0, ("transformer", True): 28.0}
    lines = [line(system, bleu, distilled=kind) for (system, kind), bleu in values.items()]
    lines.append(line("ibdecoder", 27.5, distilled=True))
    table = make_tables.Results(lines).orderings()
    says = "distillation closes the gap for IBDecoder"
    assert cells(table, "ibdecoder 1", says)[2:] == ["+2.50", "reproduced"]


def test_orderings_name_configurations() -> None:
    recipe = commands.load_script("recipe")
    text = (commands.ROOT / "configs/orderings.yaml").read_text(encoding="utf-8")
    for claim in make_tables.yaml.safe_load(text):
        named = [claim["gap"][::2], claim["gap"][1:]] if "gap" in claim else [claim["higher"], claim["lower"]]
        for row, decoding in named:
            config = recipe.load(commands.ROOT / f"configs/wmt14_en_de/{row}.yaml")
            assert decoding in config.generate, claim


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_tables_are_of_the_committed_results(path: Path) -> None:
    if "dataset" not in json.loads(path.read_text(encoding="utf-8").splitlines()[0]):
        pytest.skip("not of scripts/evaluate.sh")
    command = [sys.executable, commands.ROOT / "scripts/make_tables.py", path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert path.with_suffix(".md").read_text(encoding="utf-8") == printed
