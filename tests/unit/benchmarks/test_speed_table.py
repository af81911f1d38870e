"""The table of docs/speed.md is what the committed result says."""

from __future__ import annotations

import json

import commands
import pytest

from benchmarks import speed_table as script
from benchmarks.speed_table import against_shallow, ceilings, speed_table

RESULT = commands.ROOT / "docs/results/benchmark_decoding.json"


def test_page_has_the_committed_numbers() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    table = speed_table(result)
    page = (commands.ROOT / "docs/speed.md").read_text(encoding="utf-8")
    assert table in page
    assert against_shallow(result) in page
    assert not result["commit"].endswith("+changes"), "measured with changes that are not committed"
    assert all(row["system"] in table for row in result["decoding"] if row["batch"] == 1)


def test_how_much_faster_fewer_calls_could_be() -> None:
    def row(system: str, calls: int, **other: object) -> dict:
        base = {"batch": 1, "system": system, "precision": "float32", "decoding": "beam 4", "sentences": 2}
        return {**base, "decoder_calls": calls, "seconds": 2.0, **other}

    result = {
        # 0.1 s of a sentence's second is its start, so that 10 calls take 0.9 s.
        "decoding": [row("ar", 20), row("ibdecoder", 10), row("ibdecoder-sa", 4), row("ar", 7, precision="int8")],
        "bound": {"steps": [{"decoding": "beam 4", "start_ms": 100.0}]},
    }
    limits = ["1.82 (ibdecoder, beam 4)", "3.57 (ibdecoder-sa, beam 4)"]  # 1 / 0.55, 1 / 0.28
    assert ceilings(result) == limits
    # Of what was not measured there is none: a system, batch size 1, the bound.
    assert ceilings({**result, "decoding": result["decoding"][:2]}) == limits[:1]
    assert ceilings({**result, "decoding": [{**each, "batch": 8} for each in result["decoding"]]}) == []
    assert ceilings({**result, "bound": None}) == []


def test_a_result_without_the_bound_has_a_table() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    table = speed_table({**result, "bound": None})
    assert table.splitlines()[-1].startswith("- ")  # the last verdict


def test_a_run_that_ended_early_says_so() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert "ended early" not in speed_table(result)
    for row in result["decoding"]:
        row |= {"sentences": 5, "ms": row["ms"][:5]}
    early = "The run ended early: only the shortest 5 of 12 sentences at batch size 1. To reach:"
    assert early in speed_table({**result, "complete": False})


def test_a_file_without_single_sentences(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.call(script, monkeypatch, RESULT.parent / "gpu_h200/benchmark_decoding_256.json")
    assert capsys.readouterr().err.endswith("error: the file has no batch size 1\n")


def test_a_disturbed_row_and_a_watched_run_say_so() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    old = [{key: value for key, value in row.items() if key != "disturbed"} for row in result["decoding"]]
    assert "did not yet watch" in speed_table({**result, "decoding": old})
    for row in result["decoding"]:
        row["disturbed"] = ["others used 0.50 of 2 CPUs"] if row["system"] == "ibdecoder" else []
    lines = speed_table(result).splitlines()
    assert not any("did not yet watch" in line for line in lines)
    assert {line.split(" | ")[0] for line in lines if ", disturbed |" in line} == {"| ibdecoder"}
    verdicts = [line for line in lines if line.startswith(("- pass", "- FAIL"))]
    disturbed = [line.partition(": cpu: ")[2].split(",")[0] for line in verdicts if "disturbed" in line.split(":")[0]]
    assert disturbed == ["ibdecoder"] * 3  # beam 4, and greedy in two precisions


def test_against_one_layer_in_the_decoder() -> None:
    def row(system: str, decoding: str, *ms: float, **other: object) -> dict:
        facts = {"batch": 1, "system": system, "precision": "int8", "decoding": decoding, "ms": ms}
        return {**facts, "ms_percentiles": [0, sorted(ms)[len(ms) // 2], 0], **other}

    rows = [
        row("ar-deep", "beam 4", 8, 8, 8),
        row("ar-deep", "beam 1", 6, 6, 6),
        row("slow", "10 iterations", 16, 16, 16),
        row("slow", "4 iterations", 12, 12, 24),
        row("fast", "beam 4", 4, 8, 2),
        row("fast", "beam 1", 3, 3, 3),
        row("greedy", "beam 1", 4, 4, 4),
        row("fast", "beam 1", 1, 1, 1, batch=2),
        row("fast", "beam 1", 1, 1, 1, precision="float32"),
    ]
    assert against_shallow({"decoding": rows}).splitlines() == [
        "| system, int8 | over ar-deep int8, beam 4 | over ar-deep int8, beam 1 |",
        "| --- | --- | --- |",
        "| fast | beam 4: 2.00x (1.50-3.00) | beam 1: 2.00x (2.00-2.00) |",
        "| greedy |  | beam 1: 1.50x (1.50-1.50) |",
        "| slow | 10 iterations: 0.50x (0.50-0.50) | 4 iterations: 0.50x (0.38-0.50) |",
    ]
    assert against_shallow({"decoding": rows[2:]}) == ""
