"""Draw what benchmarks/decoding.py has measured, like Figures 2 to 4 of the IBDecoder paper.

    python -m benchmarks.figures RESULT.json OUT_PREFIX [--baseline SYSTEM] [--format png]

- OUT_PREFIX.batch-beam: speed-up by batch size and by beam
- OUT_PREFIX.length: BLEU and speed-up, of median latencies at batch size 1, by length of the source
- OUT_PREFIX.words-per-direction: BLEU against speed-up of each (h, c), and of the baseline, at the smallest batch size

Speed-ups are over the baseline with the same precision, batch size and beam: medians over sentences. Systems without
such a baseline, such as iterative refinement, are in no figure. What is left out is printed with the reason; empty
figures are not written.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from amlp_fairseq.evaluation.decoding_times import ended_early, speed_up
from benchmarks.harness import decoding_result
from benchmarks.labels import label_ends, label_points

#: Why a row has no BLEU: its model is not one of --checkpoint, or --force-length was given.
NO_BLEU = "the models are not trained, or lengths are forced"
#: Why a row has none by length: an older benchmarks/decoding.py did not store it.
ONLY_TOTAL = "the file has BLEU of all lengths together only"

Row = dict[str, Any]
#: A row, and the baseline's that it is compared with.
Pair = tuple[Row, Row]
#: What is left out, and why.
Missing = list[tuple[str, str]]


class Panel(NamedTuple):
    """A part of a figure: lines over ticks or, without ticks, points with their names.

    Attributes:
        gains: of points, how much more BLEU they have than the baseline that they are compared with.
    """

    title: str
    xlabel: str
    ylabel: str
    ticks: list[Any]
    lines: dict[str, dict[Any, float]]
    gains: dict[str, float]


def name(row: Row) -> str:
    return f"{row['system']} {row['precision']}"


def compared(rows: list[Row], baseline: str) -> tuple[list[Pair], Missing]:
    """Each row with that of the baseline for the same precision, batch size and beam."""
    same = ("precision", "decoding", "batch")
    bases = {tuple(row[key] for key in same): row for row in rows if row["system"] == baseline}
    pairs, missing = [], []
    for row in rows:
        way = tuple(row[key] for key in same)
        if way in bases:
            pairs.append((row, bases[way]))
        else:
            missing.append((name(row), "no {} {} {} at batch size {}".format(baseline, *way)))
    return pairs, missing


def groups(pairs: list[Pair], key: str) -> dict[Any, list[Pair]]:
    """The pairs of each batch size or beam, in ascending order."""
    found: dict[Any, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: int(re.sub(r"\D", "", str(pair[0][key])))):
        found.setdefault(pair[0][key], []).append(pair)
    return found


def by_batch_and_beam(pairs: list[Pair]) -> tuple[list[Panel], Missing]:
    """Figure 2: a panel by batch size for each beam, and one by beam for each batch size."""
    panels: list[Panel] = []
    missing: Missing = []
    for key, fixed in (("batch", "decoding"), ("decoding", "batch")):
        ticks = list(groups(pairs, key))
        if len(ticks) < 2:
            missing.append((f"speed-up by {key}", f"there is only {ticks[0]}"))
            continue
        for value, chosen in groups(pairs, fixed).items():
            lines: dict[str, dict[Any, float]] = {}
            for row, base in chosen:
                lines.setdefault(name(row), {})[row[key]] = speed_up(row, base).median
            panels.append(Panel(f"{fixed} {value}".removeprefix("decoding "), key, "speed-up", ticks, lines, {}))
    return panels, missing


def without_bleu(pairs: list[Pair], key: str) -> Missing:
    """The systems without BLEU, and why."""
    lacking = [row for row, _ in pairs if key not in row]
    everyone = len(lacking) == len(pairs)
    reasons = [ONLY_TOTAL if "bleu" in row else NO_BLEU for row in lacking]
    names = ["all systems" if everyone else name(row) for row in lacking]
    return [(f"BLEU of {who}", why) for who, why in zip(names, reasons, strict=True)]


def by_length(pairs: list[Pair]) -> tuple[list[Panel], Missing]:
    """Figure 3: for each beam a panel of BLEU, if there is any, and one of speed-ups."""
    ms, bleu = "ms_by_source_length", "bleu_by_source_length"
    alone = groups(pairs, "batch").get(1, [])
    if not alone:
        return [], [("latencies", "they are those of sentences at batch size 1, which was not measured")]
    panels = []
    for decoding, chosen in groups(alone, "decoding").items():
        ticks = list(chosen[0][0][ms])
        scores = {name(row): row[bleu] for row, _ in chosen if bleu in row}
        faster = {name(row): {bin: base[ms][bin] / row[ms][bin] for bin in ticks} for row, base in chosen}
        for label, lines in (("BLEU", scores), ("speed-up", faster)):
            if lines:
                panels.append(Panel(decoding, "words of the source", label, ticks, lines, {}))
    return panels, without_bleu(alone, bleu)


def by_pattern(pairs: list[Pair]) -> tuple[list[Panel], Missing]:
    """Figure 4: a panel for each beam."""
    panels: list[Panel] = []
    size, smallest = next(iter(groups(pairs, "batch").items()))
    missing = without_bleu(smallest, "bleu")
    for decoding, chosen in groups(smallest, "decoding").items():
        points: dict[str, dict[Any, float]] = {}
        gains: dict[str, float] = {}
        scored = [(row, base) for row, base in chosen if "bleu" in row]
        for row, base in scored:
            pattern = f" ({row['directions']}, {row['words_per_direction']})" if "directions" in row else ""
            point = name(row) + pattern
            if pattern or row is base:
                points[point] = {speed_up(row, base).median: row["bleu"]}
                if "bleu" in base:
                    gains[point] = row["bleu"] - base["bleu"]
            else:
                missing.append((name(row), "no (h, c)"))
        if any("directions" in row and row is not base for row, base in scored):
            panels.append(Panel(f"{decoding}, batch {size}", "speed-up", "BLEU", [], points, gains))
    return panels, missing


FIGURES = {"batch-beam": by_batch_and_beam, "length": by_length, "words-per-direction": by_pattern}


def finding(panels: list[Panel], baseline: str) -> str:
    """What the figure shows: the largest speed-up and, where it is against BLEU, what that costs."""
    chosen = [panel for panel in panels if "speed-up" in (panel.xlabel, panel.ylabel)]
    found = [
        (value if panel.ticks else x, line, panel, x, value)
        for panel in chosen
        for line, values in panel.lines.items()
        for x, value in values.items()
    ]
    most, line, panel, x, _ = max(found, key=lambda point: point[0])
    text = f"At most {most:.1f} times as fast as {baseline}: {line}, {panel.title}"
    if panel.ticks:
        return text + f", {panel.xlabel} {str(x).removeprefix(panel.xlabel).strip()}".replace("decoding ", "")
    if line in panel.gains:
        gain = panel.gains[line]
        text += f"; {abs(gain):.1f} BLEU {'below' if gain < 0 else 'above'} it"
    return text


def draw(panels: list[Panel], title: str, machine: str, path: Path) -> None:
    """Write a figure."""
    from matplotlib.figure import Figure  # of the extra "bench"

    height = (len(panels) + 1) // 2
    names = list(dict.fromkeys(line for panel in panels for line in panel.lines))
    most = max(len(panel.lines) for panel in panels)
    figure = Figure(figsize=(12, 0.9 + height * max(3.2, 0.17 * most)), layout="constrained")
    grid = figure.subplots(height, 2, squeeze=False).flatten()
    for axes, panel in zip(grid, panels, strict=False):
        for line, values in panel.lines.items():
            points = sorted((panel.ticks.index(x) if panel.ticks else x, y) for x, y in values.items())
            color = f"C{names.index(line)}"
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=color, label=line)
        if panel.ticks:
            axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.05 if panel.ticks else 0.3, y=0.1)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.supxlabel(machine, x=0.01, ha="left", fontsize=8, color="0.35")
    for axes, panel in zip(grid, panels, strict=False):
        if panel.ticks:
            label_ends(axes)
        else:
            label_points(axes, {line: next(iter(values.items())) for line, values in panel.lines.items()}, set())
    figure.savefig(path)


def say(missing: Missing) -> None:
    """Print a line for each reason."""
    for reason in dict.fromkeys(why for _, why in missing):
        print(f"  left out: {', '.join(dict.fromkeys(what for what, why in missing if why == reason))}: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = "output of benchmarks/decoding.py --out"
    parser.add_argument("result", type=decoding_result, metavar="RESULT.json", help=words)
    parser.add_argument("prefix", metavar="OUT_PREFIX", help="prefix of the figures' file names")
    parser.add_argument("--baseline", metavar="SYSTEM", help="what speed-ups are over (default: the file's first)")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    args = parser.parse_args()
    result = args.result
    systems = list(dict.fromkeys(row["system"] for row in result["decoding"]))
    baseline = args.baseline or systems[0]
    if baseline not in systems:
        sys.exit(f"--baseline {baseline!r} is not one of: {', '.join(systems)}")
    pairs, missing = compared(result["decoding"], baseline)
    print(f"speed-ups over {baseline}")
    machine = f"{result['device']}, {result['threads']} threads"
    if early := ended_early(result):
        print(f"  {early}")
        machine += f". {early}"
    say(missing)
    if all(row is base for row, base in pairs):
        sys.exit(f"there is nothing to compare with {baseline}")
    for figure, panels_of in FIGURES.items():
        panels, missing = panels_of(pairs)
        path = Path(f"{args.prefix}.{figure}.{args.format}")
        if panels:
            draw(panels, finding(panels, baseline), machine, path)
        print(f"{path}: {'written' if panels else 'not written'}")
        say(missing)


if __name__ == "__main__":
    main()
