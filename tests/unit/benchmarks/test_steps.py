"""benchmarks/steps.py: it measures only what decodes right, and counts the decoding state exactly."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from fairseq.models import FairseqIncrementalDecoder

from amlp_fairseq.attention import average
from benchmarks import steps as SCRIPT

SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "layers": 1, "heads": 2, "words": 20, "length": 6, "source_length": 5}
MEASURED = {"rows": 3, "batches": [1, 2], "beams": [1, 4], "repeats": 1, "threads": 1}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    commands.call(SCRIPT, monkeypatch, *arguments, **SIZES, **MEASURED)


def options(**changes: Any) -> Namespace:
    return Namespace(**{"device": "cpu", "dtype": torch.float32, **SIZES, **MEASURED, **changes})


def built(args: Namespace) -> dict[str, Any]:
    torch.manual_seed(1)
    return SCRIPT.build(args)


def test_numbers_tables_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SCRIPT, "UNCACHED_ROWS", 4)
    result, _ = commands.measured(run, monkeypatch, tmp_path)
    assert "fairseq" in result
    assert result["options"] == {"device": "cpu", "dtype": "float32", **SIZES, **MEASURED}

    steps = {row["system"]: row for row in result["steps"]}
    assert list(steps) == list(SCRIPT.SYSTEMS)
    for row in steps.values():
        assert len(row["ms"]) == 6
        assert min(row["ms"]) > 0
        assert row["first_quarter_ms"] == row["ms"][1]  # a quarter of 6 is 1; the first position does not count
        assert row["last_quarter_ms"] == row["ms"][5]
        assert row["growth"] == pytest.approx(row["ms"][5] / row["ms"][1])
        assert list(row["state_bytes"]) == ["1", "3", "6"]

    rows = {(row["batch"], row["beam"], row["system"]): row for row in result["search"]}
    assert list(rows) == [(batch, beam, name) for batch in (1, 2) for beam in (1, 4) for name in SCRIPT.SYSTEMS]
    for (batch, beam, name), row in rows.items():
        if (batch, beam, name) == (2, 4, SCRIPT.UNCACHED):
            assert row["skipped"] == "not run"
            continue
        assert row["sentences_per_second"] == pytest.approx(batch / row["seconds"])
        assert row["vs_cached"] == pytest.approx(rows[batch, beam, SCRIPT.CACHED]["seconds"] / row["seconds"])
        if batch * beam <= 4:
            assert row["vs_uncached"] == pytest.approx(rows[batch, beam, SCRIPT.UNCACHED]["seconds"] / row["seconds"])
        assert row.get("poster") == (3.7 if beam == 4 and name in (SCRIPT.AAN, SCRIPT.FFN) else None)
    passed = [target["passed"] for target in result["targets"]]
    assert passed[0] is None  # too short
    assert passed[1] is (rows[1, 4, SCRIPT.AAN]["vs_uncached"] >= 3.7)
    assert passed[2:] == [None] * 4

    lines = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in lines[:7] + lines[8:30]} == {8}
    assert "| 2 | 4 | Transformer without cache | not run |  |  |  |" in lines
    assert [line.partition(":")[0] for line in lines if "as on the poster" in line][1:] == ["not measured"] * 4


def test_sizes_of_states() -> None:
    args = options(layers=4, repeats=1)
    sizes = {row["system"]: row["state_bytes"] for row in SCRIPT.measure_steps(built(args), args)}
    for n in (1, 3, 6):
        assert sizes[SCRIPT.AAN][str(n)] == sizes[SCRIPT.FFN][str(n)] == 4 * 16 * 4
        assert sizes[SCRIPT.CACHED][str(n)] == 4 * 2 * 16 * 4 * n
        assert sizes[SCRIPT.UNCACHED][str(n)] == 0
        assert sizes[SCRIPT.CONV][str(n)] == (2 + 6 + 14 + 30) * 16 * 4


def test_uncached_rows_are_a_limit_of_the_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCRIPT, "UNCACHED_ROWS", 2)
    args = options()
    rows = {row["system"]: row for row in SCRIPT.measure_steps(built(args), args)}
    assert [name for name, row in rows.items() if "skipped" in row] == [SCRIPT.UNCACHED]
    assert "| Transformer without cache | not run |  |  |  |  |  |" in SCRIPT.tables(list(rows.values()), [])


def test_without_cache_each_step_runs_over_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    args = options(layers=2)
    models = built(args)
    stock, seen = models[SCRIPT.CACHED].decoder, []
    forward = stock.extract_features

    def spy(tokens: Any, *more: Any, **named: Any) -> Any:
        features = forward(tokens, *more, **named)
        seen.append((tokens.size(1), named["incremental_state"], features[0].size(1)))
        return features

    monkeypatch.setattr(stock, "extract_features", spy)
    sample = SCRIPT.sources(args, 2)
    _, words = SCRIPT.hypotheses(models[SCRIPT.UNCACHED], sample, 4, 6, "cpu")
    assert seen == [(n, None, n) for n in range(1, 8)]  # six words and the end symbol

    seen.clear()
    assert SCRIPT.hypotheses(models[SCRIPT.CACHED], sample, 4, 6, "cpu")[1] == words
    assert [(n, outputs) for n, _, outputs in seen] == [(n, 1) for n in range(1, 8)]
    assert all(state for _, state, _ in seen)
    assert isinstance(stock, FairseqIncrementalDecoder)
    assert not isinstance(models[SCRIPT.UNCACHED].decoder, FairseqIncrementalDecoder)


def stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--out", tmp_path / "numbers.json", "--plot", tmp_path / "plot.png")
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    return str(stopped.value.code)  # a text: Python prints it and ends with status 1


def test_no_numbers_when_average_attention_decodes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = average.continue_mean

    def forgetful(x: Any, total: Any, count: int, step: int) -> Any:
        return right(x, total * 0.9, count, step)

    monkeypatch.setattr(average, "continue_mean", forgetful)
    lines = stops(tmp_path, monkeypatch, capsys).splitlines()
    assert [line.partition(": decoding is off by ")[0] for line in lines[1:]] == [SCRIPT.AAN, SCRIPT.FFN]


def test_no_numbers_when_the_search_without_cache_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = SCRIPT.WholePrefixDecoder.forward

    def forgetful(self: Any, tokens: Any, *more: Any, **named: Any) -> Any:
        return right(self, tokens[:, -2:], *more, **named)

    monkeypatch.setattr(SCRIPT.WholePrefixDecoder, "forward", forgetful)
    message = stops(tmp_path, monkeypatch, capsys)
    assert message.splitlines()[1:] == ["the Transformer finds other words without its cache"]


def test_targets() -> None:
    def row(batch: int, beam: int, vs_cached: float, vs_uncached: float | None = None) -> dict[str, Any]:
        known = {} if vs_uncached is None else {"vs_uncached": vs_uncached}
        return {"system": SCRIPT.AAN, "batch": batch, "beam": beam, "vs_cached": vs_cached, **known}

    other = {"system": SCRIPT.FFN, "batch": 1, "beam": 4, "vs_cached": 0.5, "vs_uncached": 0.5}
    rows = [other, row(1, 1, 1.1, 1.2), row(1, 4, 1.2, 3.8), row(2, 4, 1.3, 3.9), row(1, 8, 1.4, 4), row(2, 8, 1.5)]
    found = [(target["value"], target["passed"]) for target in SCRIPT.targets(rows, options(length=50))]
    assert found == [(1.1, True), (3.8, True), (4, False), (None, None), (None, None), (None, None)]
    assert SCRIPT.targets(rows, options(length=49))[0]["passed"] is None
    rows.append(row(2, 16, 0.9))
    assert SCRIPT.targets(rows, options(length=60))[0]["passed"] is False
