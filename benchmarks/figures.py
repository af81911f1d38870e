"""Draw what a benchmark of this folder has measured, from the file that it wrote with --out.

    python -m benchmarks.figures RESULT.json OUT_PREFIX [--baseline SYSTEM]

- OUT_PREFIX.svg: the picture of the benchmark's own --plot
- of benchmarks/decoding.py also Figures 2 to 4 of the IBDecoder paper:
  - OUT_PREFIX.batch-beam.svg: speed-up by batch size and by beam
  - OUT_PREFIX.length.svg: BLEU and speed-up, of median latencies at batch size 1, by length of the source
  - OUT_PREFIX.words-per-direction.svg: BLEU against speed-up of each (h, c), and of the baseline, at the smallest batch
    size

Speed-ups of these three are over the baseline with the same precision, batch size and beam: medians over sentences.
Systems without such a baseline, such as iterative refinement, are in none. What is left out is printed with the reason;
empty figures are not written.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from amlp_fairseq.evaluation.charts import lines
from amlp_fairseq.evaluation.decoding_times import Row, ended_early, speed_up
from benchmarks.drawings import draw_decoding, drawer
from benchmarks.harness import read_result
from benchmarks.pictures import LIGHT, WIDTH, Dot, Series, settings, write_picture

#: Why a row has no BLEU: its model is not one of --checkpoint, or --force-length was given.
NO_BLEU = "the models are not trained, or lengths are forced"
#: Why a row has none by length: an older benchmarks/decoding.py did not store it.
ONLY_TOTAL = "the file has BLEU of all lengths together only"

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
        setting = tuple(row[key] for key in same)
        if setting in bases:
            pairs.append((row, bases[setting]))
        else:
            missing.append((name(row), "no {} {} {} at batch size {}".format(baseline, *setting)))
    return pairs, missing


def groups(pairs: list[Pair], key: str) -> dict[Any, list[Pair]]:
    """The pairs of each batch size or beam, in ascending order."""
    by_value: dict[Any, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: int(re.sub(r"\D", "", str(pair[0][key])))):
        by_value.setdefault(pair[0][key], []).append(pair)
    return by_value


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
            series: dict[str, dict[Any, float]] = {}
            for row, base in chosen:
                series.setdefault(name(row), {})[row[key]] = speed_up(row, base).median
            panels.append(Panel(f"{fixed} {value}".removeprefix("decoding "), key, "speed-up", ticks, series, {}))
    return panels, missing


def without_bleu(pairs: list[Pair], key: str) -> Missing:
    """The systems without BLEU, and the reasons."""
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
        for label, series in (("BLEU", scores), ("speed-up", faster)):
            if series:
                panels.append(Panel(decoding, "words of the source", label, ticks, series, {}))
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
    """The title of a figure: the largest speed-up and, where it is against BLEU, what that costs."""
    chosen = [panel for panel in panels if "speed-up" in (panel.xlabel, panel.ylabel)]
    points = [
        (value if panel.ticks else x, line, panel, x, value)
        for panel in chosen
        for line, values in panel.lines.items()
        for x, value in values.items()
    ]
    largest, line, panel, x, _ = max(points, key=lambda point: point[0])
    text = f"At most {largest:.1f} times as fast as {baseline}: {line}, {panel.title}"
    if panel.ticks:
        return text + f", {panel.xlabel} {str(x).removeprefix(panel.xlabel).strip()}".replace("decoding ", "")
    if line in panel.gains:
        gain = panel.gains[line]
        text += f"; {abs(gain):.1f} BLEU {'below' if gain < 0 else 'above'} it"
    return text


def print_missing(missing: Missing) -> None:
    """Print a line for each reason."""
    for reason in dict.fromkeys(why for _, why in missing):
        print(f"  left out: {', '.join(dict.fromkeys(what for what, why in missing if why == reason))}: {reason}")


def draw_figure(panels: list[Panel], title: str, facts: str, path: Path) -> None:
    """Write one of the paper's figures."""
    names = list(dict.fromkeys(line for panel in panels for line in panel.lines))
    colours = {name: index % len(LIGHT) for index, name in enumerate(names)}
    height = max(340, 60 + 15 * max(len(panel.lines) for panel in panels))
    charts = []
    for panel in panels:
        if panel.ticks:
            series = {
                name: {float(panel.ticks.index(x)): value for x, value in values.items()}
                for name, values in panel.lines.items()
            }
            ticks = list(map(str, panel.ticks))
            chart = lines(series, colours, panel.xlabel, panel.ylabel, WIDTH, height, ticks, linear=True)
        else:
            points = [(name, *point) for name, values in panel.lines.items() for point in values.items()]
            dots = [Series(name, colours[name], [Dot(x, y, name)]) for name, x, y in points]
            chart = settings(dots, panel.xlabel, panel.ylabel)
        charts.append((panel.title, chart))
    write_picture(path, title, charts, facts)


def draw_paper_figures(result: dict[str, Any], prefix: str, baseline: str | None) -> None:
    """Write the paper's figures, and print what is left out."""
    systems = list(dict.fromkeys(row["system"] for row in result["decoding"]))
    baseline = baseline or systems[0]
    if baseline not in systems:
        sys.exit(f"--baseline {baseline!r} is not one of: {', '.join(systems)}")
    pairs, missing = compared(result["decoding"], baseline)
    print(f"speed-ups over {baseline}")
    facts = f"{result['device']}, {result['threads']} threads"
    if early := ended_early(result):
        print(f"  {early}")
        facts += f". {early}"
    print_missing(missing)
    if all(row is base for row, base in pairs):
        sys.exit(f"there is nothing to compare with {baseline}")
    for figure, panels_of in FIGURES.items():
        panels, missing = panels_of(pairs)
        path = Path(f"{prefix}.{figure}.svg")
        if panels:
            draw_figure(panels, finding(panels, baseline), facts, path)
        print(f"{path}: {'written' if panels else 'not written'}")
        print_missing(missing)


def parsed_result(text: str) -> dict[str, Any]:
    """The result in a file on the command line."""
    result = read_result(text)
    if drawer(result) is None:
        raise argparse.ArgumentTypeError(f"{text}: it is of no benchmark that has a picture")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=parsed_result, metavar="RESULT.json", help="result of a benchmark's --out")
    parser.add_argument("prefix", metavar="OUT_PREFIX", help="prefix of the figures' file names")
    parser.add_argument("--baseline", metavar="SYSTEM", help="baseline of speed-ups (default: the file's first)")
    args = parser.parse_args()
    draw = drawer(args.result)
    if args.baseline is not None and draw is not draw_decoding:
        parser.error("--baseline is for files of benchmarks/decoding.py")
    assert draw is not None
    path = Path(f"{args.prefix}.svg")
    if not path.absolute().parent.is_dir():
        parser.error(f"OUT_PREFIX {args.prefix}: there is no folder {path.parent}")
    draw(args.result, path)
    print(f"{path}: written")
    if draw is draw_decoding:
        draw_paper_figures(args.result, args.prefix, args.baseline)


if __name__ == "__main__":
    main()
