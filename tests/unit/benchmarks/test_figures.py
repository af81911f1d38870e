"""benchmarks/figures.py: each system is compared with the baseline in the same way only; what is missing is named."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import commands
import pytest

from amlp_fairseq.evaluation.charts import FONT, lines
from benchmarks import figures as make_figures

NO_BLEU = make_figures.NO_BLEU


def row(system: str, seconds: float, decoding: str = "beam 4", batch: int = 1, **other: Any) -> dict[str, Any]:
    """Of latencies that are a third of the seconds in the bin below ten words, and two thirds in the other."""
    ms = {"<10": 1000 * seconds / 3, "10-19": 2000 * seconds / 3}
    facts = {"system": system, "precision": "float32", "decoding": decoding, "batch": batch, "ms": list(ms.values())}
    return {**facts, "ms_by_source_length": ms, "ms_percentiles": sorted([*ms.values(), 500 * seconds]), **other}


def bleu(whole: float, short: float, long: float, *pattern: int) -> dict[str, Any]:
    scores = {"bleu": whole, "bleu_by_source_length": {"<10": short, "10-19": long}}
    return scores | dict(zip(("directions", "words_per_direction"), pattern, strict=False))


def pairs(*rows: dict[str, Any], baseline: str = "ar") -> list[Any]:
    found, missing = make_figures.compared(rows, baseline)
    assert not missing
    return list(found)


#: Two batch sizes and two beams.
GRID = [
    *(row("ar", seconds, decoding, batch) for decoding, batch, seconds in (
        ("beam 4", 1, 12.0), ("beam 1", 1, 8.0), ("beam 4", 16, 6.0), ("beam 1", 16, 3.0),
    )),
    *(row("ib", seconds, decoding, batch) for decoding, batch, seconds in (
        ("beam 4", 1, 4.0), ("beam 1", 1, 4.0), ("beam 4", 16, 4.0), ("beam 1", 16, 1.0),
    )),
]  # fmt: skip


def test_a_row_without_its_baseline_is_left_out() -> None:
    rows = [
        *GRID[:1],
        row("ib", 4.0),
        row("ib", 4.0, batch=16),
        row("ib", 4.0, decoding="beam 1"),
        row("ib", 4.0, precision="int8"),
        row("cmlm", 4.0, decoding="4 iterations"),
    ]
    found, missing = make_figures.compared(rows, "ar")
    assert found == [(rows[0], rows[0]), (rows[1], rows[0])]
    assert missing == [
        ("ib float32", "no ar float32 beam 4 at batch size 16"),
        ("ib float32", "no ar float32 beam 1 at batch size 1"),
        ("ib int8", "no ar int8 beam 4 at batch size 1"),
        ("cmlm float32", "no ar float32 4 iterations at batch size 1"),
    ]


def test_speed_up_by_batch_and_beam() -> None:
    panels, missing = make_figures.by_batch_and_beam(pairs(*GRID))
    assert [(panel.title, panel.ticks, panel.lines["ib float32"]) for panel in panels] == [
        ("beam 1", [1, 16], {1: 2.0, 16: 3.0}),
        ("beam 4", [1, 16], {1: 3.0, 16: 1.5}),
        ("batch 1", ["beam 1", "beam 4"], {"beam 1": 2.0, "beam 4": 3.0}),
        ("batch 16", ["beam 1", "beam 4"], {"beam 1": 3.0, "beam 4": 1.5}),
    ]
    assert all(set(panel.lines["ar float32"].values()) == {1.0} for panel in panels)
    assert missing == []

    panels, missing = make_figures.by_batch_and_beam(pairs(GRID[0], GRID[2], GRID[4], GRID[6]))
    assert [panel.title for panel in panels] == ["beam 4"]
    assert missing == [("speed-up by decoding", "there is only beam 4")]


def test_bleu_and_speed_up_by_length() -> None:
    base, faster = row("ar", 12.0, **bleu(30, 40, 20)), row("ib", 4.0, **bleu(29, 39, 18))
    faster["ms_by_source_length"] = {"<10": 2000.0, "10-19": 2000.0}
    other = row("aan", 6.0, bleu=25.0)
    panels, missing = make_figures.by_length(pairs(base, faster, other, row("cmlm", 6.0), row("ar", 1.0, batch=2)))
    bleus, speed_ups = panels
    assert (bleus.title, bleus.ylabel, bleus.ticks) == ("beam 4", "BLEU", ["<10", "10-19"])
    assert bleus.lines == {"ar float32": {"<10": 40, "10-19": 20}, "ib float32": {"<10": 39, "10-19": 18}}
    assert speed_ups.ylabel == "speed-up"
    assert speed_ups.lines["ib float32"] == pytest.approx({"<10": 2.0, "10-19": 4.0})
    assert missing == [
        ("BLEU of aan float32", make_figures.ONLY_TOTAL),
        ("BLEU of cmlm float32", NO_BLEU),
    ]
    panels, missing = make_figures.by_length(pairs(*GRID[2:4]))
    assert panels == []
    assert missing == [("latencies", "they are those of sentences at batch size 1, which was not measured")]


def test_bleu_against_speed_up() -> None:
    rows = [
        row("ar", 12.0, **bleu(30, 40, 20)),
        row("one", 6.0, **bleu(29, 39, 18, 2, 1)),
        row("two", 3.0, **bleu(27, 35, 18, 2, 2)),
        row("aan", 6.0, **bleu(29, 39, 18)),
        row("random", 6.0, directions=2, words_per_direction=1),
        row("ar", 12.0, batch=2, **bleu(30, 40, 20)),
        row("one", 1.0, batch=2, **bleu(29, 39, 18, 2, 1)),
    ]
    (panel,), missing = make_figures.by_pattern(pairs(*rows))
    assert panel.title == "beam 4, batch 1"
    points = {"ar float32": {1.0: 30}, "one float32 (2, 1)": {2.0: 29}, "two float32 (2, 2)": {4.0: 27}}
    assert panel.lines == points
    assert missing == [("BLEU of random float32", NO_BLEU), ("aan float32", "no (h, c)")]
    assert make_figures.by_pattern(pairs(rows[0], rows[3])) == ([], [("aan float32", "no (h, c)")])


def drawn(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[dict[str, Any]],
    *words: str,
    result_folder: Path | None = None,
    **facts: Any,
) -> list[str]:
    """The names of the files that the program writes."""
    result = (result_folder or folder) / "result.json"
    first = " ".join(rows[0][name] for name in ("system", "precision", "decoding"))
    content = {"decoding": rows, "device": "C", "threads": 1, "options": {"batches": [1]}, "baseline": first, **facts}
    result.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["make_figures.py", str(result), str(folder / "fig"), *words])
    make_figures.main()
    return sorted(path.name for path in folder.iterdir() if path != result)


def test_figures_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    systems = {"ar": bleu(30, 40, 20), "ib": bleu(29, 39, 18, 2, 1)}
    rows = [{**base, **systems[base["system"]]} for base in GRID]
    names = ["fig.batch-beam.svg", "fig.length.svg", "fig.svg", "fig.words-per-direction.svg"]
    assert drawn(tmp_path, monkeypatch, rows) == names
    assert "(2, 1)" in (tmp_path / names[3]).read_text(encoding="utf-8")
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'fig.svg'}: written",
        "speed-ups over ar",
        *(f"{tmp_path / name}: written" for name in names if name != "fig.svg"),
    ]


def test_a_run_that_ended_early_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(system, 4.0, sentences=2) for system in ("ar", "ib")]
    name, _ = drawn(tmp_path, monkeypatch, rows, complete=False, lengths=[[3, 3]] * 5)
    early = "The run ended early: only the shortest 2 of 5 sentences at batch size 1"
    assert f"  {early}" in capsys.readouterr().out.splitlines()
    assert f"C, 1 threads. {early}" in (tmp_path / name).read_text(encoding="utf-8")


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*(row(system, 4.0) for system in ("ib", "ar", "aan")), row("cmlm", 4.0, "4 iterations")]
    assert drawn(tmp_path, monkeypatch, rows, "--baseline", "ar") == ["fig.length.svg", "fig.svg"]
    bleu = f"  left out: BLEU of all systems: {NO_BLEU}"
    assert capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines() == [
        "fig.svg: written",
        "speed-ups over ar",
        "  left out: cmlm float32: no ar float32 4 iterations at batch size 1",
        "fig.batch-beam.svg: not written",
        "  left out: speed-up by batch: there is only 1",
        "  left out: speed-up by decoding: there is only beam 4",
        "fig.length.svg: written",
        bleu,
        "fig.words-per-direction.svg: not written",
        bleu,
    ]


def test_nothing_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [GRID[0], row("cmlm", 4.0, "4 iterations")]
    with pytest.raises(SystemExit, match="there is nothing to compare with ar"):
        drawn(tmp_path, monkeypatch, rows)
    with pytest.raises(SystemExit, match="--baseline 'transformer' is not one of: ar, cmlm"):
        drawn(tmp_path, monkeypatch, rows, "--baseline", "transformer")


def test_a_folder_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        drawn(tmp_path / "none", monkeypatch, GRID, result_folder=tmp_path)
    assert stopped.value.code == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


def test_the_title_says_the_largest_speed_up() -> None:
    panels, _ = make_figures.by_batch_and_beam(pairs(*GRID))
    assert make_figures.finding(panels, "ar") == "At most 3.0 times as fast as ar: ib float32, beam 1, batch 16"
    rows = [row("ar", 12.0, **bleu(30, 40, 20)), row("two", 3.0, **bleu(27.5, 35, 18, 2, 2))]
    panels, _ = make_figures.by_pattern(pairs(*rows))
    expected = "At most 4.0 times as fast as ar: two float32 (2, 2), beam 4, batch 1"
    assert make_figures.finding(panels, "ar") == f"{expected}; 2.5 BLEU below it"
    # The baseline of the same precision; if it has no BLEU there is none to compare.
    low = [row("ar", 12.0, precision="int8", bleu=31.0), row("two", 4.0, precision="int8", bleu=29.0)]
    panels, _ = make_figures.by_pattern(pairs(*low, *rows))
    assert make_figures.finding(panels, "ar") == f"{expected}; 2.5 BLEU below it"
    panels, _ = make_figures.by_pattern(pairs(row("ar", 12.0), rows[1]))
    assert make_figures.finding(panels, "ar") == expected


#: The pictures of docs/results, by file of results, and the baseline that was given.
PICTURES = {
    "benchmark_batches": ("ar", "batch-beam", "length"),
    "benchmark_decoding": (None, ""),
    "benchmark_embedded": ("autoregressive", "", "batch-beam", "length", "words-per-direction"),
    "benchmark_length": (None, ""),
    "benchmark_long_inputs": (None, ""),
    "benchmark_ops": (None, ""),
    "efficiency_attentions": (None, ""),
    "efficiency_multi30k": (None, ""),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_committed_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what the program draws of the committed numbers."""
    folder, (baseline, *kinds) = commands.ROOT / "docs/results", PICTURES[name]
    options = ["--baseline", baseline] if baseline else []
    commands.call(make_figures, monkeypatch, folder / f"{name}.json", tmp_path / name, *options)
    for kind in kinds:
        path = tmp_path / f"{name}{'.' * bool(kind)}{kind}.svg"
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_every_picture_of_the_results_is_drawn() -> None:
    pictures = {path.name.partition(".")[0] for path in (commands.ROOT / "docs/results").glob("*.svg")}
    assert pictures == PICTURES.keys()


def test_names_at_the_ends_of_lines_stand_apart() -> None:
    """Of lines that end in almost one point, in the order of their ends."""
    series = {f"line {index}": {1.0: 1.0 + index, 2.0: 3 + index / 100} for index in range(8)}
    svg = lines(series, {}, "x", "y", 600, 400)
    heights = [float(text.attrib["y"]) for text in svg.iter("text") if (text.text or "").startswith("line ")]
    ordered = sorted(heights, reverse=True)
    assert heights == ordered
    assert all(lower - upper >= FONT for lower, upper in itertools.pairwise(ordered))
