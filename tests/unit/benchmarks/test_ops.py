"""benchmarks/ops.py: it measures only what is right, and memory exactly."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from torch import Tensor

from amlp_fairseq.ops.dynamic_conv import cases
from benchmarks import ops as SCRIPT

MIB = 2**20
TINY = ["--channels", "16", "--heads", "2", "--kernel", "5", "--batch", "2", "--repeats", "1", "--threads", "1"]


@torch.library.custom_op("benchmark_ops_test::two_blocks", mutates_args=())
def two_blocks(x: Tensor) -> Tensor:
    blocks = [torch.empty(MIB, dtype=torch.uint8) for _ in range(2)]
    return blocks[0].new_empty(x.shape, dtype=x.dtype)


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CASES", {name: cases.CASES[name] for name in ("causal", "one position")})


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    commands.call(SCRIPT, monkeypatch, *TINY, *arguments)


def test_numbers_table_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = commands.measured(run, monkeypatch, tmp_path, "--lengths", 3, 40)
    assert result["options"] == {
        "device": "cpu", "dtype": "float32", "lengths": [3, 40], "batch": 2, "channels": 16, "heads": 2, "kernel": 5,
        "threads": 1, "repeats": 1, "backend": "torch",
    }  # fmt: skip
    assert [target["passed"] for target in result["targets"]] == [None, None]

    systems = {
        "DynamicConv": ["ours", "naive", "fairseq", "fairseq expanded", "fairseq unfolded"],
        "LightConv": ["ours", "naive", "fairseq", "fairseq unfolded", "F.conv1d"],
    }
    rows = {(row["operator"], row["T"], row["system"]): row for row in result["results"]}
    assert list(rows) == [(op, T, system) for op in systems for T in (3, 40) for system in systems[op]]
    assert rows.pop(("DynamicConv", 3, "fairseq unfolded"))["skipped"] == "another function where T < 5"
    for (operator, T, _), row in rows.items():
        stock = rows[operator, T, "fairseq"]
        for key in ("forward_ms", "forward_backward_ms", "memory_mib"):
            assert row[key] > 0
            assert row[key.rpartition("_")[0] + "_ratio"] == pytest.approx(stock[key] / row[key])

    lines = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in lines[:22]} == {10}
    assert lines[2].startswith("| DynamicConv | 3 | ours | ")


def test_memory_is_that_of_live_tensors() -> None:
    def one_after_the_other() -> None:
        for _ in range(2):
            torch.empty(MIB, dtype=torch.uint8)

    def together() -> list[Tensor]:
        return [torch.empty(MIB, dtype=torch.uint8) for _ in range(2)]

    before = torch.empty(8 * MIB, dtype=torch.uint8)
    assert SCRIPT.peak_extra_memory(one_after_the_other, "cpu") == MIB
    assert SCRIPT.peak_extra_memory(together, "cpu") == 2 * MIB
    assert SCRIPT.peak_extra_memory(before.clone, "cpu") == 8 * MIB


def test_memory_inside_a_custom_operator_counts() -> None:
    x = torch.zeros(4)
    assert SCRIPT.peak_extra_memory(lambda: two_blocks(x), "cpu") == 2 * MIB + x.nbytes


def test_memory_of_the_operator_is_the_same_each_time() -> None:
    problem = SCRIPT.dynamic_problem(options(), torch.randn(40, 2, 16, requires_grad=True))
    x, parameter = problem.inputs

    def train() -> list[Tensor]:
        return SCRIPT.forward_backward(problem.systems["ours"], problem.inputs, torch.ones_like(x))

    first = SCRIPT.peak_extra_memory(train, "cpu")
    assert first == SCRIPT.peak_extra_memory(train, "cpu") > 2 * x.nbytes + parameter.nbytes


def options(**changes: Any) -> Namespace:
    return Namespace(
        **{"device": "cpu", "backend": "torch", "channels": 16, "heads": 2, "kernel": 5, "repeats": 1, **changes}
    )


def test_no_numbers_when_an_operator_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = cases.dynamic_conv
    monkeypatch.setattr(cases, "dynamic_conv", lambda x, *more, **named: right(x * 1.001, *more, **named))
    out = tmp_path / "numbers.json"
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--lengths", 3, "--out", out, "--plot", tmp_path / "plot.svg")
    message = str(stopped.value.code)  # a text: Python prints it and ends with status 1
    assert "dynamic_conv, causal, torch.float32, dropout 0.3: output is off by 1.0e-03" in message
    assert "light_conv" not in message
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_no_numbers_when_systems_disagree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SCRIPT, "light_conv_naive", lambda x, weight, padding_l: x * weight.softmax(-1).sum() / 2)
    with pytest.raises(SystemExit, match=r"^LightConv, T=3: naive differs from ours by "):
        run(monkeypatch, "--lengths", 3, "--out", tmp_path / "numbers.json")
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_difference_that_is_not_a_number_is_none_that_is_small() -> None:
    right, wrong = torch.ones(2), torch.tensor([1, float("nan")])
    assert not SCRIPT.disagreement([right, right], [wrong, right]) < 1
    assert not SCRIPT.disagreement([right, right], [right, wrong]) < 1


def test_what_does_not_fit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(100, 2, 16, requires_grad=True)
    args = options(dtype=torch.float32)
    monkeypatch.setattr(SCRIPT, "memory_limit", lambda device: 16 * x.nbytes)
    rows = {row["system"]: row for row in SCRIPT.measure(SCRIPT.light_problem(args, x), args, None)}
    assert [name for name, row in rows.items() if "skipped" in row] == ["naive", "fairseq", "fairseq unfolded"]
    assert rows["naive"]["skipped"] == "needs 0.0 GiB"
    assert rows["ours"].keys() == {"operator", "T", "system", "memory_mib", "forward_ms", "forward_backward_ms"}
    assert "| skipped: needs 0.0 GiB |" in SCRIPT.results_table(list(rows.values()))


@pytest.mark.parametrize("make", [SCRIPT.dynamic_problem, SCRIPT.light_problem])
def test_estimates_of_memory_are_near(make: Any) -> None:
    args = options(channels=64, kernel=31)
    x = torch.randn(600, 2, 64, requires_grad=True)
    problem = make(args, x)
    for name, system in problem.systems.items():
        peak = SCRIPT.peak_extra_memory(
            lambda system=system: SCRIPT.forward_backward(system, problem.inputs, torch.ones_like(x)), "cpu"
        )
        assert SCRIPT.obstacle(problem, name, args, limit=peak) != "", f"{name}: {peak / x.nbytes:.1f}"
        assert SCRIPT.obstacle(problem, name, args, limit=3 * peak) == "", f"{name}: {peak / x.nbytes:.1f}"


def row(T: int, **numbers: float) -> dict[str, Any]:
    return {"operator": "DynamicConv", "T": T, "system": "ours", **numbers}


def test_targets_on_the_cpu() -> None:
    args = options(channels=1024, heads=16, kernel=31)
    rows = [row(64, forward_backward_ratio=1, memory_ratio=1), row(512, forward_backward_ratio=2.5, memory_ratio=1.9)]
    assert [(target["value"], target["passed"]) for target in SCRIPT.targets(rows, args)] == [(2.5, True), (1.9, False)]
    assert [target["passed"] for target in SCRIPT.targets(rows, options(channels=512))] == [None, None]


def test_targets_on_cuda() -> None:
    args = options(device="cuda")
    rows = [
        row(8, bandwidth_share=0.1, forward_ratio=0.5, forward_backward_ratio=0.5),
        row(16, bandwidth_share=0.2, forward_ratio=1.5, forward_backward_ratio=0.9),
        row(256, bandwidth_share=0.85, forward_ratio=3, forward_backward_ratio=2),
    ]
    assert [target["value"] for target in SCRIPT.targets(rows, args)] == [0.85, 0.9]
    assert [target["passed"] for target in SCRIPT.targets(rows, args)] == [True, False]
