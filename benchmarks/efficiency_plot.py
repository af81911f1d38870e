"""The picture of benchmarks/efficiency.py: BLEU over latency and throughput, on light and dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from amlp_fairseq.evaluation.charts import BOTTOM, LEFT, TOP, Linear, Log, canvas, draw_axes, draw_label, node, number

WIDTH, HEIGHT = 620, 420
STYLE = """
svg { font: 12px system-ui, sans-serif; --ink: #1d2127; --soft: #5d6570; --line: #dfdcd5; --page: #fff;
  --amlp-fairseq: #1f5fbf; --ctranslate2: #b3372b; background: var(--page); }
@media (prefers-color-scheme: dark) { svg { --ink: #eceae5; --soft: #a2a9b3; --line: #333941; --page: #1d2126;
  --amlp-fairseq: #7fb0ff; --ctranslate2: #ff9d8f; } }
text { fill: var(--soft); } .title { fill: var(--ink); font-weight: 600; font-size: 14px; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
g { --own: var(--soft); } .amlp-fairseq { --own: var(--amlp-fairseq); } .ctranslate2 { --own: var(--ctranslate2); }
polyline { fill: none; stroke: var(--own); opacity: .35; } circle { stroke: var(--own); stroke-width: 1.5; }
.leader { stroke: var(--own); opacity: .6; }
.seeds { stroke: var(--own); stroke-width: 2px; } .float32 { fill: var(--page); } .int8, .bfloat16 { fill: var(--own); }
text.own { fill: var(--own); font-weight: 600; paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
"""
#: How the points of precisions are drawn.
DOTS = (("filled", "int8"), ("filled", "bfloat16"), ("empty", "float32"))
Row = dict[str, Any]


def draw(result: dict[str, Any], latency: list[Row], throughput: list[Row], path: Path) -> None:
    """Write the picture of a result.

    Args:
        result: of the benchmark.
        latency: its rows of lines that come one at a time, on the same number of CPUs.
        throughput: its rows of lines that come all at once; drawn if they took longer than one line.
        path: an .svg.
    """
    cores = f"{latency[0]['cores']} CPU{'s' * (latency[0]['cores'] > 1)}" if latency else ""
    panels = [
        (f"Latency, {cores}", "ms a line, median", [(row["ms_percentiles"][2], row) for row in latency]),
        (
            "Throughput, all CPUs",
            "seconds for 1000 lines, less a one-line run",
            [(row["ms_per_line_less_one_line"], row) for row in throughput if "ms_per_line_less_one_line" in row],
        ),
    ]
    figure = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {2 * WIDTH + 30} {HEIGHT + 82}")
    node(figure, "style", STYLE)
    for place, (title, cost, found) in enumerate(panels):
        left, scored = place * (WIDTH + 30), [(value, row) for value, row in found if "bleu" in row]
        node(figure, "text", title, x=left + 2, y=20, class_="title")
        if scored:
            panel = _panel(scored, cost)
            panel.attrib |= {"x": str(left), "y": "30", "height": str(HEIGHT)}
            figure.append(panel)
    _legend(figure, result)
    disturbed = sum(bool(row["disturbed"]) for row in result["rows"])
    facts = f"{result['device']}; {result['lines']} lines; disturbed: {disturbed} of {len(result['rows'])} ways"
    node(figure, "text", facts, x=2, y=HEIGHT + 74)
    path.write_bytes(tostring(figure))


def _panel(found: list[tuple[float, Row]], cost: str) -> Element:
    """A line through the ways in which a program decodes with a model, named once, at its best."""
    x = Log([value for value, _ in found], LEFT, WIDTH - 14)
    y = Linear([bleu for _, row in found for bleu in row["bleu_of_seeds"]], HEIGHT - BOTTOM, TOP)
    svg = canvas(WIDTH, HEIGHT, f"BLEU against {cost}, {len(found)} points")
    draw_axes(svg, x, y, cost, "BLEU", WIDTH, HEIGHT)
    series: dict[tuple[str, str], list[tuple[float, Row]]] = {}
    for value, row in sorted(found, key=lambda each: each[0]):
        series.setdefault((row["system"], row["model"]), []).append((value, row))
    taken, names = [], []
    for (system, model), ways in series.items():
        group = node(svg, "g", class_=system)
        places = [(x(value), y(row["bleu"])) for value, row in ways]
        node(group, "polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in places))
        for (value, row), (a, b) in zip(ways, places, strict=True):
            if len(seeds := row["bleu_of_seeds"]) > 1:
                node(group, "line", x1=a, x2=a, y1=y(min(seeds)), y2=y(max(seeds)), class_="seeds")
            dot = node(group, "circle", cx=a, cy=b, r=4, class_=row["precision"])
            name = f"{system} {model} {row['precision']} {row['decoding']}"
            node(dot, "title", f"{name}: {number(row['bleu'])} BLEU, {number(value)} {cost}")
            taken.append((a - 5, b - 5, a + 5, b + 5))
        best = max(range(len(ways)), key=lambda index: ways[index][1]["bleu"])
        names.append((group, model, places[best]))
    for group, model, place in names:
        draw_label(group, model, place, taken, (LEFT, 0, WIDTH, HEIGHT - BOTTOM), bold=True, class_="own")
    return svg


def _legend(figure: Element, result: dict[str, Any]) -> None:
    left = 2
    for system in dict.fromkeys(row["system"] for row in result["rows"]):
        group = node(figure, "g", class_=system)
        node(group, "circle", cx=left + 5, cy=HEIGHT + 48, r=4, class_="int8")
        node(group, "text", system, x=left + 14, y=HEIGHT + 52, class_="own")
        left += 40 + 8 * len(system)
    precisions = {row["precision"] for row in result["rows"]}
    keys = "".join(f"{dot}: {name}; " for dot, name in DOTS if name in precisions) + "a line: one model in all its ways"
    if any(len(row.get("bleu_of_seeds", ())) > 1 for row in result["rows"]):
        keys += "; a bar: models of several seeds"
    node(figure, "text", keys, x=left, y=HEIGHT + 52)
