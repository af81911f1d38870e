"""The PMI estimate against the paper's Table 3."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import commands
import pytest

SCRIPT = commands.load_script("estimate_pmi")


def log(perplexity: float) -> str:
    return (
        "2026-01-01 00:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.1 | nll_loss 8.9 | ppl 477\n"
        f"2026-01-01 00:01:00 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 9.1 | "
        f"nll_loss {math.log2(perplexity):.3f} | ppl {perplexity}\n"
        "2026-01-01 00:02:00 | INFO | train | epoch 002 | loss 1.0 | nll_loss 1.0 | ppl 2\n"
    )


@pytest.mark.parametrize(("base", "other", "pmi"), [(4.04, 6.95, 0.235), (4.86, 4.72, -0.014)])
def test_table_3(
    *,
    base: float,
    other: float,
    pmi: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table's estimates from the table's perplexities, which are rounded."""
    logs = {"base": log(base), "other": log(other)}
    monkeypatch.setattr(SCRIPT, "validate", lambda data, path, rest: SCRIPT.log10_perplexity(logs[str(path)]))
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(sys, "argv", ["estimate_pmi", "data", "base", "other", "--results", str(results)])
    SCRIPT.main()
    printed = capsys.readouterr().out
    assert float(printed.split()[-1]) == pytest.approx(pmi, abs=0.0021)
    assert printed.startswith(f"perplexity {base} and {other}, ")
    (line,) = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    assert (line["autoregressive"], line["other"]) == ("base", "other")
    assert line["perplexities"] == pytest.approx([base, other], abs=0.01)
    assert f"{line['pmi']:.3f}" == printed.split()[-1]


def test_a_log_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match="no validation line"):
        SCRIPT.log10_perplexity("nothing")
