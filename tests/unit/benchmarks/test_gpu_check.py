"""benchmarks/gpu_check.py: what it finds, and that no part can keep the others from running."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import commands
import graph_emulator
import pytest

from amlp_fairseq.ops.dynamic_conv import kernels
from benchmarks import gpu_check as SCRIPT
from benchmarks.gpu_parts import Part, Report
from benchmarks.gpu_sizes import Size


def check(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    """The status and the numbers."""
    monkeypatch.setattr(SCRIPT, "device_here", lambda: "cpu")
    with pytest.raises(SystemExit) as end:
        commands.call(SCRIPT, monkeypatch, "--size", "tiny", "--out", out, *arguments)
    return end.value.code, json.loads(out.read_text(encoding="utf-8"))  # type: ignore[return-value]


def test_all_parts_pass_with_graphs_that_are_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph_emulator.install(monkeypatch)
    status, result = check(monkeypatch, tmp_path / "out.json")
    parts = result["parts"]
    assert {name: part["failures"] for name, part in parts.items()} == {
        name: [] for name in SCRIPT.PARTS if name != "tuning"
    }
    assert {part["status"] for part in parts.values()} == {"passed"}
    assert (status, result["complete"], result["device"]) == (0, True, "cpu")
    assert {row["operator"] for row in parts["parity"]["rows"]} == {"dynamic_conv", "light_conv", "cross_covariance"}
    assert all(0 < row["error"] <= row["allowed"] for row in parts["parity"]["rows"])
    assert {row["of"] for row in parts["parity"]["rows"]} >= {"output", "gradient of x", "gradient of weight"}
    assert len(parts["graphs"]["rows"]) == 6
    assert {row["other_words"] for row in parts["graphs"]["rows"]} == {0}
    for row in parts["ops"]["rows"]:
        assert row["copy_gb_s"] > 0 < row["forward_share"]
    assert {row["system"] for row in parts["lengths"]["rows"]} == {"SDPA", "AMLP-Cov"}
    assert {row["system"] for row in parts["decoding"]["rows"]} == {"ibdecoder"}
    printed = capsys.readouterr()
    assert "there is no CUDA device" in printed.err
    assert "| graphs | passed |" in printed.out
    assert printed.out.endswith("out.json: no part failed\n")


def test_wrong_kernels_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = kernels.forward

    def wrong(*arguments: Any) -> Any:
        out, logsumexp = right(*arguments)
        return out * 1.001, logsumexp

    monkeypatch.setattr(kernels, "forward", wrong)
    status, result = check(monkeypatch, tmp_path / "out.json", "--parts", "parity")
    failures = result["parts"]["parity"]["failures"]
    assert status == 1
    of_output = [failure for failure in failures if "output is off by" in failure]
    assert len(of_output) == 4  # dynamic and light, with and without dropout
    assert all("conv, causal, dropout 0." in failure for failure in failures)
    assert capsys.readouterr().out.endswith("FAILED: parity\n")


def crash(report: Report, size: Size, device: str) -> None:
    report.row(before="the crash")
    os.kill(os.getpid(), signal.SIGKILL)


def hang(report: Report, size: Size, device: str) -> None:
    time.sleep(60)


def fail(report: Report, size: Size, device: str) -> None:
    raise ValueError("a reason\nand more")


def test_crashes_and_hangs_are_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = Part(lambda report, size, device: report.row(fine=True), 60)
    parts = {"crash": Part(crash, 60), "hang": Part(hang, 1), "fail": Part(fail, 60), "fine": fine}
    monkeypatch.setattr(SCRIPT, "PARTS", parts)
    status, result = check(monkeypatch, tmp_path / "out.json", "--parts", *parts)
    found = result["parts"]
    assert status == 1
    assert found["crash"]["failures"] == ["crashed: its process ended by SIGKILL"]
    assert found["crash"]["rows"] == [{"before": "the crash"}]
    assert found["hang"]["failures"] == ["stopped: it had not finished after 1 s"]
    assert found["fail"]["failures"] == ["ValueError: a reason"]
    assert "Traceback (most recent call last):" in found["fail"]["log"]
    assert (found["fine"]["status"], found["fine"]["rows"]) == ("passed", [{"fine": True}])
    assert capsys.readouterr().out.endswith("FAILED: crash, hang, fail\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "/nowhere/out.json"], "--out /nowhere/out.json: No such file or directory"),
        (["--minutes", "0"], "--minutes 0: it must be more than 0"),
        (["--parts", "everything"], "invalid choice: 'everything'"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        commands.call(SCRIPT, monkeypatch, *arguments)
    assert message in capsys.readouterr().err


def test_it_needs_only_what_a_bare_machine_has(tmp_path: Path) -> None:
    """A machine without a network has torch, numpy, sacrebleu, PyYAML and the like, and the wheels of fairseq."""
    lacking = ["sentencex", "rouge_score", "ctranslate2", "starlette", "uvicorn", "httpx", "tensorboardX"]
    program = f"""import sys
sys.modules.update(dict.fromkeys({lacking}))
sys.argv[1:] = ["--size", "tiny", "--parts", "decoding", "--out", {str(tmp_path / "out.json")!r}]
from benchmarks import gpu_check
gpu_check.main()
"""
    commands.fresh(sys.executable, "-c", program)
