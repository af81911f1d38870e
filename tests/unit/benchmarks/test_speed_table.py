"""The table of docs/speed.md is what the committed result says."""

from __future__ import annotations

import json

import commands

from benchmarks.speed_table import ceilings, speed_table

RESULT = commands.ROOT / "docs/results/benchmark_decoding.json"


def test_page_has_the_committed_numbers() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    table = speed_table(result)
    page = (commands.ROOT / "docs/speed.md").read_text(encoding="utf-8")
    assert table in page
    assert result["clean"], "measured with changes that are not committed"
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
