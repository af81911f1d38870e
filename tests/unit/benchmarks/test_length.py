"""benchmarks/length.py: it measures only what is right, says what it leaves out, and reads its numbers right."""

from __future__ import annotations

import gc
import json
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import commands
import graph_emulator
import pytest
import torch

from benchmarks import length as SCRIPT
from benchmarks.crossover import crossover
from benchmarks.length_results import MEASURES

AR, WRITTEN, SDPA, COV, PQUERY = "AR", "written-out", "SDPA", "AMLP-Cov", "AMLP-PQuery"
SIZES = {"batch": 2, "embed_dim": 16, "heads": 2, "inner_dim": 4, "window": 5, "activation": "relu"}
MEASURED = {"lengths": [8, 40], "repeats": 2, "seconds": 10.0, "threads": 1}
KEYS = {f"{kind}_{what}" for kind in SCRIPT.KINDS for what in ("ms", "median_ms", "repeats", "mib")}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    commands.call(SCRIPT, monkeypatch, *arguments, **SIZES, **MEASURED)


def options(**changes: Any) -> Namespace:
    usual = {"device": "cpu", "cuda_graphs": False, "dtype": torch.float32, "systems": list(SCRIPT.SYSTEMS)}
    return Namespace(**{**usual, "sdpa": "FLASH_ATTENTION", **SIZES, **MEASURED, **changes})


def built(args: Namespace) -> dict[str, Any]:
    torch.manual_seed(1)
    return SCRIPT.build(args)


@pytest.fixture(autouse=True, scope="module")
def little_garbage() -> Iterator[None]:
    """Each measurement of memory collects garbage, which takes long among all that the imports have made."""
    args = options()
    module, x = built(args)[COV], SCRIPT.random(args, 3, 2).requires_grad_()
    SCRIPT.forward_backward(module, x, x.detach())  # PyTorch's own late imports
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_numbers_tables_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = commands.measured(run, monkeypatch, tmp_path)
    assert result["sdpa_kernel"] == "FLASH_ATTENTION"
    systems = [AR, WRITTEN, SDPA, COV, PQUERY, "ABC", "local", "Performer"]
    usual = {"device": "cpu", "cuda_graphs": False, "dtype": "float32", "systems": systems}
    assert result["options"] == {**usual, **SIZES, **MEASURED}

    rows = {(row["n"], row["system"]): row for row in result["results"]}
    assert list(rows) == [(n, system) for n in (8, 40) for system in systems]
    for (n, name), row in rows.items():
        keys = KEYS if name != AR else {key for key in KEYS if key.startswith("forward_") and "backward" not in key}
        assert KEYS & row.keys() == keys
        assert row["left_out"] == {}
        assert min(row[key] for key in keys) > 0
        assert row["forward_repeats"] == 2
        for base, system in (("ar", AR), ("written_out", WRITTEN), ("sdpa", SDPA)):
            other = rows[n, system]
            assert row[f"forward_speed_over_{base}"] == pytest.approx(other["forward_ms"] / row["forward_ms"])
            assert row[f"forward_memory_over_{base}"] == pytest.approx(row["forward_mib"] / other["forward_mib"])
            assert (f"forward_backward_speed_over_{base}" in row) == (AR not in (name, system))
    assert [rows[n, AR]["steps_timed"] for n in (8, 40)] == [8, 32]

    linear, measures = systems[3:], list(MEASURES.values())
    assert [(found["against"], found["system"], found["measure"]) for found in result["crossovers"]] == [
        (against, system, measure) for against in (WRITTEN, SDPA) for system in linear for measure in measures
    ]
    for found in result["crossovers"]:
        assert found["lengths"] == [8, 40]
        if found["measure"] == "forward memory":
            ours, other = ([rows[n, found[s]]["forward_mib"] for n in (8, 40)] for s in ("system", "against"))
            assert found["less_at"] == [n for n, a, b in zip((8, 40), ours, other, strict=True) if a < b]
    assert [target["target"].partition(":")[0] for target in result["targets"]] == [
        f"{name}, forward" for name in (COV, PQUERY) for _ in range(4)
    ]
    for i, target in enumerate(result["targets"] + result["information"]):
        assert target["passed"] in ((None, True) if i % 4 == 2 else (None,))  # a crossover may be at any length

    lines = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in lines[:18]} == {16}
    assert "AR's times are estimated from 4 steps in each of 8 stretches." in lines
    assert {line.count("|") for line in lines if line.startswith(("| crossover", "| ABC |"))} == {8}
    assert len([line for line in lines if line.startswith(f"{COV} against SDPA, ")]) == 5
    assert len([line for line in lines if line.startswith("for information, not measured: ")]) in (6, 7, 8)
    assert len([line for line in lines if line.startswith("not measured: ")]) in (6, 7, 8)


def test_some_systems_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "numbers.json", tmp_path / "plot.svg"
    run(monkeypatch, "--systems", COV, "local", "--lengths", 8, "--out", out, "--plot", plot)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert [row["system"] for row in result["results"]] == [COV, "local"]
    assert result["crossovers"] == []
    assert plot.exists()
    assert "AR's times" not in capsys.readouterr().out


def test_calls_as_cuda_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--cuda-graphs", "--systems", AR, SDPA, COV, PQUERY, "--lengths", 8)
    with pytest.raises(SystemExit):
        run(monkeypatch, *options)
    assert "--cuda-graphs needs --device cuda" in capsys.readouterr().err

    captured, out = graph_emulator.install(monkeypatch), tmp_path / "numbers.json"
    run(monkeypatch, *options, "--out", out)
    assert len(captured) == 3 * len(SCRIPT.KINDS)  # AR's steps are not
    rows = {row["system"]: row for row in json.loads(out.read_text(encoding="utf-8"))["results"]}
    assert all(rows[name][f"{kind}_ms"] > 0 for name in (SDPA, COV, PQUERY) for kind in SCRIPT.KINDS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen, right = tmp_path / "numbers.json", set(), SCRIPT.peak_extra_memory

    def peak_extra_memory(function: Any, device: str) -> int:
        seen.add(function.args[0].q_proj.weight.dtype)
        seen.add(function.args[1].dtype)
        return right(function, device)

    monkeypatch.setattr(SCRIPT, "peak_extra_memory", peak_extra_memory)
    run(monkeypatch, "--dtype", dtype, "--systems", SDPA, COV, PQUERY, "--lengths", 8, "--out", out)
    assert seen == {getattr(torch, dtype)}
    assert len(json.loads(out.read_text(encoding="utf-8"))["results"]) == 3


def stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--out", tmp_path / "numbers.json", "--plot", tmp_path / "plot.svg")
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    first, *found = str(stopped.value.code).splitlines()  # a text: Python prints it and ends with status 1
    assert first == "Attentions are wrong, nothing is measured:"
    return [line.rpartition(" by ")[0] for line in found]


@pytest.mark.parametrize("name", SCRIPT.LINEAR)
def test_no_numbers_when_an_attention_is_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cls = SCRIPT.ATTENTIONS[SCRIPT.LINEAR[name]]
    right = cls.attend

    def inexact(self: Any, q: Any, *more: Any, **options: Any) -> Any:
        out, weights = right(self, q, *more, **options)
        return (out if q.dtype == torch.float64 else 1.001 * out), weights

    monkeypatch.setattr(cls, "attend", inexact)
    assert stops(tmp_path, monkeypatch, capsys) == [f"{name} differs from float64 in torch.float32"]


def test_no_numbers_when_the_softmaxes_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = SCRIPT.WrittenOutSoftmax._attend
    monkeypatch.setattr(SCRIPT.WrittenOutSoftmax, "_attend", lambda self, q, *more: right(self, 2 * q, *more))
    assert stops(tmp_path, monkeypatch, capsys) == ["SDPA differs from the written-out softmax in torch.float32"]


def test_no_numbers_when_decoding_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = SCRIPT.SoftmaxAttention.step_causally

    def forgetful(self: Any, q: Any, kv: Any, state: Any, context: Any) -> Any:
        state["kv"][:, :, :, : max(context.end - 50, 0)] = 0
        return right(self, q, kv, state, context)

    monkeypatch.setattr(SCRIPT.SoftmaxAttention, "step_causally", forgetful)
    assert stops(tmp_path, monkeypatch, capsys) == [
        "incremental decoding differs from causal attention in torch.float32"
    ]


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    args = options(repeats=1)
    limit = SCRIPT.needs(WRITTEN, "forward", 512, args)
    monkeypatch.setattr(SCRIPT, "memory_limit", lambda device: limit)
    monkeypatch.setattr(SCRIPT, "GIB", 2**20)
    rows = SCRIPT.measure(built(args), 512, args)
    left_out = {row["system"]: row["left_out"] for row in rows if row["left_out"]}
    needed = SCRIPT.needs(WRITTEN, "forward_backward", 512, args) / 2**20
    assert left_out == {WRITTEN: {"forward_backward": f"needs {needed:.1f} GiB"}}
    assert needed > 3 * 2 * 2 * 512 * 512 * 4 / 2**20  # three matrices for each head of two sentences
    by_name = {row["system"]: row for row in rows}
    assert by_name[WRITTEN].keys() >= {"forward_ms", "core_ms", "forward_mib"}
    assert not {"forward_backward_ms", "forward_backward_mib"} & by_name[WRITTEN].keys()
    assert "forward_backward_speed_over_written_out" not in by_name[COV]
    assert by_name[COV]["forward_backward_ms"] > 0
    assert SCRIPT.results_table(rows).count(f"| left out: needs {needed:.1f} GiB |") == 1

    crossings = SCRIPT.crossovers(rows)
    measures = {found["measure"] for found in crossings if found["against"] == WRITTEN}
    assert measures == {"forward time", "core time", "forward memory"}
    assert [target["passed"] for target in SCRIPT.targets(rows, crossings, "forward_backward")] == [None] * 8

    monkeypatch.setattr(SCRIPT, "memory_limit", lambda device: 0)
    rows = SCRIPT.measure(built(args), 512, args)
    assert [sorted(row["left_out"]) for row in rows] == [["forward"]] + 7 * [["core", "forward", "forward_backward"]]
    assert SCRIPT.results_table(rows).count("left out: needs") == 1 + 7 * 3
    assert SCRIPT.crossover_table(SCRIPT.crossovers(rows)).count("\n") == 1


@pytest.mark.parametrize("changes", [{}, {"heads": 4, "inner_dim": 64}, {"window": 80}], ids=str)
def test_estimates_of_memory_are_near(changes: dict[str, Any]) -> None:
    args = options(batch=1, **{"embed_dim": 128, "inner_dim": 32, **changes})
    x, grad = (SCRIPT.random(args, 512, 1).requires_grad_() for _ in range(2))
    modules = built(args)
    k, v = (SCRIPT.by_head(SCRIPT.random(args, 512, 1), args) for _ in range(2))
    for name, module in modules.items():
        functions = {
            "forward": partial(SCRIPT.forward, module, x),
            "forward_backward": partial(SCRIPT.forward_backward, module, x, grad),
        }
        if name == AR:
            functions = {"forward": partial(SCRIPT.last_step, module, x, k, v)}
        for kind, function in functions.items():
            peak = SCRIPT.peak_extra_memory(function, "cpu")
            assert 0.9 * peak < SCRIPT.needs(name, kind, 512, args) < 3 * peak, f"{name}, {kind}: {peak / x.nbytes:.1f}"


def test_memory_of_the_written_out_softmax() -> None:
    args = options()
    modules, x = built(args), SCRIPT.random(args, 300, 2)
    q, k, v = (SCRIPT.by_head(SCRIPT.random(args, 300, 2), args) for _ in range(3))
    matrix = 4 * 2 * 2 * 300 * 300
    peak = SCRIPT.peak_extra_memory(partial(SCRIPT.core, modules[WRITTEN], q, k, v), "cpu")
    assert 2 * matrix <= peak < 2 * matrix + 3 * x.nbytes
    assert SCRIPT.peak_extra_memory(partial(SCRIPT.core, modules[SDPA], q, k, v), "cpu") < matrix / 4
    # of AR: the keys and values
    state = SCRIPT.peak_extra_memory(partial(SCRIPT.last_step, modules[AR], x, k, v), "cpu")
    assert 2 * x.nbytes * 0.99 < state < 2.5 * x.nbytes


@pytest.mark.parametrize("length", [1, 3, 8, 20, 32, 33, 8192])
def test_stretches_are_all_positions(length: int) -> None:
    found = SCRIPT.stretches(length)
    positions = [i for begin, end, _ in found for i in range(begin, end)]
    assert positions == list(range(length))
    assert all(0 < count <= min(4, end - begin) for begin, end, count in found)
    assert sum(count for *_, count in found) == min(length, 32) or length in (20, 33)


def test_incremental_time_of_steps_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    args, clock, states = options(), [0.0], []
    module = built(args)[AR]
    monkeypatch.setattr(SCRIPT, "now", lambda device: clock[0])
    right = SCRIPT.whole

    def step(module: Any, x: Any, incremental_state: Any) -> Any:
        (state,) = incremental_state.values()
        states.append(state["length"])
        clock[0] += 3 + 2 * states[-1]
        return right(module, x, incremental_state=incremental_state)

    monkeypatch.setattr(SCRIPT, "whole", step)
    x = SCRIPT.random(args, 64, 2)
    k = SCRIPT.by_head(x, args)
    found = SCRIPT.incremental_seconds(module, x, k, k, "cpu")
    assert states == [8 * i + j for i in range(8) for j in (2, 3, 4, 5)]
    assert found == pytest.approx(sum(3 + 2 * n for n in range(64)))


def test_quartile_mean() -> None:
    assert SCRIPT.quartile_mean([100, 3, 1, 5, -50, 6, 2, 4]) == 3.5  # of 2, 3, 4, 5
    assert SCRIPT.quartile_mean([7]) == 7
    assert SCRIPT.quartile_mean([1, 4]) == 2.5
    assert SCRIPT.quartile_mean([9, 1, 2, 0]) == 1.5


def test_crossover() -> None:
    other = {100: 1.0, 200: 2.0, 400: 4.0, 800: 8.0}

    def ours(*values: float) -> dict[int, float]:
        return dict(zip(other, values, strict=False))

    assert crossover(ours(0.5, 0.5, 0.5, 0.5), other) == "always"
    assert crossover(ours(1, 2, 4, 8), other) == "always"  # touching all along
    assert crossover(ours(9, 9, 9, 9), other) == "never"
    assert crossover(ours(0.5, 1, 2, 9), other) == "never"  # not at the longest
    # other(n) = n/100 is met by a constant exactly where that says, on logarithmic scales
    assert crossover(ours(3, 3, 3, 3), other) == pytest.approx(300)
    assert crossover(ours(4, 4, 4, 4), other) == pytest.approx(400)  # touching at a measured length
    assert crossover(ours(9, 9, 9, 8), other) == pytest.approx(800)
    assert crossover(ours(0.5, 4, 2, 2), other) == pytest.approx(200 * 2**0.5)  # the last one of three
    # only lengths of both
    assert crossover({100: 0.5, 1600: 99.0}, other) == "always"
    assert crossover({50: 0.5, 100: 2.0}, other) == "never"
    assert crossover({50: 0.5}, other) is None


def rows_of(system: str, times: dict[int, float], memory: dict[int, float], other: float = 1.0) -> list[dict[str, Any]]:
    """Of a forward, where the written-out softmax takes ``other`` per position and system."""
    return [
        {
            "n": n,
            "system": system,
            "forward_ms": times[n],
            "forward_mib": memory[n],
            "forward_speed_over_written_out": other * n / times[n],
            "forward_memory_over_written_out": memory[n] / (other * n),
        }
        for n in times
    ]


def judged(*rows: list[dict[str, Any]]) -> list[tuple[float | None, bool | None]]:
    together = [row for part in rows for row in part]
    found = SCRIPT.targets(together, SCRIPT.crossovers(together), "forward")
    return [(target["value"] and round(target["value"], 4), target["passed"]) for target in found]


def test_targets() -> None:
    def written(*lengths: int) -> list[dict[str, Any]]:
        return rows_of(WRITTEN, {n: n for n in lengths}, {n: n for n in lengths})

    good = rows_of(COV, {256: 1000, 2048: 1000, 8192: 1000}, {256: 300, 2048: 700, 8192: 800})
    bad = rows_of(PQUERY, {256: 2000, 2048: 2000, 8192: 2000}, {256: 10, 2048: 2049, 8192: 1000})
    assert judged(written(256, 2048, 8192), good, bad) == [
        (round(1 - 800 / 8192, 4), True), (8.192, True), (1000, True), (round(700 / 2048, 4), True),
        (round(1 - 1000 / 8192, 4), False), (4.096, False), (2000, False), (round(2049 / 2048, 4), False),
    ]  # fmt: skip
    # Short runs say nothing of long ones; "never" and "always" count if the paper's crossover is between the lengths.
    none: list[tuple[None, None]] = [(None, None)] * 4
    short = rows_of(COV, {256: 1000, 400: 1000}, {256: 1, 400: 1})
    assert judged(written(256, 400), short) == [*none, *none]
    slow = rows_of(COV, {256: 9999, 2048: 9999}, {256: 1, 2048: 1})
    assert judged(written(256, 2048), slow)[2] == (None, False)
    fast = rows_of(COV, {256: 1, 400: 1}, {256: 1, 400: 1})
    assert judged(written(256, 400), fast)[2] == (None, True)
    long = rows_of(COV, {2048: 1}, {2048: 1})
    assert judged(written(2048), long)[2] == (None, None)


def test_speeds_over_ar_stand_beside_the_papers() -> None:
    rows = [
        {"system": name, "n": n, "forward_speed_over_ar": speed}
        for name, n, speed in ((WRITTEN, 8192, 100.0), (COV, 8192, 500.0), ("ABC", 8192, 9.0), (COV, 256, 2.0))
    ]
    assert SCRIPT.over_ar([*rows, {"system": PQUERY, "n": 8192}]) == [
        "written-out at 8192: 100 times as fast as AR (paper, A100: 116)",
        "AMLP-Cov at 8192: 500 times as fast as AR (paper, A100: 590)",
    ]


def test_where_amlp_beats_sdpa_is_said() -> None:
    lengths = (256, 512, 1024)
    sdpa = rows_of(SDPA, {n: n for n in lengths}, {n: n for n in lengths})
    ours = rows_of(COV, dict.fromkeys(lengths, 600.0), dict.fromkeys(lengths, 2000.0))
    abc = rows_of("ABC", dict.fromkeys(lengths, 1.0), dict.fromkeys(lengths, 1.0))
    crossings = SCRIPT.crossovers([*sdpa, *ours, *abc])
    assert SCRIPT.comparison(crossings) == [
        "AMLP-Cov against SDPA, forward time: less at 1024; no less at 256, 512",
        "AMLP-Cov against SDPA, forward memory: less at none; no less at 256, 512, 1024",
    ]
    assert SCRIPT.crossover_table(crossings).splitlines()[2:] == [
        "| AMLP-Cov | SDPA | 600 |  |  | never |  |",
        "| ABC | SDPA | always |  |  | always |  |",
    ]


def test_slow_ones_are_repeated_less() -> None:
    args = options(repeats=3, seconds=1e-9, systems=[SDPA])
    (row,) = SCRIPT.measure(built(args), 8, args)
    assert [row[f"{kind}_repeats"] for kind in SCRIPT.KINDS] == [1, 1, 1]
    args.seconds = 60
    (row,) = SCRIPT.measure(built(args), 8, args)
    assert [row[f"{kind}_repeats"] for kind in SCRIPT.KINDS] == [3, 3, 3]
