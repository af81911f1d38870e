"""amlp-fairseq parameters: models are as large as their papers say."""

from __future__ import annotations

import re

import commands
import pytest

from amlp_fairseq.evaluation import parameters
from amlp_fairseq.training.config import load, names, row_corpora

#: Rows and corpora for which the papers say how many parameters they have.
COMMITTED = re.findall(
    r"^\| (\w+), (\w+) \|", (commands.ROOT / "docs/results/parameters.md").read_text(encoding="utf-8"), re.MULTILINE
)
#: Published absolute counts that cannot be met, for reasons that the configurations' notes give.
UNEXPLAINED_BY_SIZE = {"lightconv_glu", "amlp_transformer", "cmlmc"}


@pytest.mark.parametrize(("row", "data"), dict.fromkeys(COMMITTED))
def test_models_are_as_large_as_published(row: str, data: str) -> None:
    recipe = load(row, data, "paper")
    compared = parameters.comparisons([recipe])
    assert compared
    for line in compared:
        difference = abs(line.ours - line.published)
        if "over" in line.entry:
            # Local attention has no parameters; the paper prints those of ABC for CMLMC (local).
            assert difference < (0.021 if row == "cmlmc_local" else 0.0125), line
        else:
            assert difference < 1 or (row in UNEXPLAINED_BY_SIZE and line.entry["note"]), line


def test_the_committed_table_of_parameters_is_current() -> None:
    """Its rows, not its numbers: those are in the test above."""
    assert [
        (row, data)
        for row in names("rows")
        for data in row_corpora(row)
        for entry in load(row, data, "paper").published
        if "parameters" in entry
    ] == COMMITTED


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands.call(parameters, monkeypatch, "cmlmc_abc")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| configuration | table | row | ours | published | difference |")
    assert lines[2].startswith("| cmlmc_abc, wmt14_en_de | amlp 3 | CMLMC (ABC) | +0.02M | +0.02M | +0.00M | over")
    assert [line.split(" |")[0] for line in lines[3:]] == ["| cmlmc_abc, wmt14_de_en"]
    with pytest.raises(ValueError, match=r"configs/rows: 'cmlmc_acb' is unknown; did you mean 'cmlmc_abc'\?"):
        commands.call(parameters, monkeypatch, "cmlmc_acb")


def test_rows_without_a_published_number_have_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.call(parameters, monkeypatch, "transformer_student")  # in no paper
    *_, line = capsys.readouterr().out.splitlines()
    assert re.match(r"\| transformer_student, wmt14_en_de \|  \|  \| \d\d\.\d\dM \|  \|  \|  \|$", line)
