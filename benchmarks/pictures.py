"""Pictures of results: charts of amlp_fairseq/evaluation/charts.py side by side in an SVG, on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, tostring

from amlp_fairseq.evaluation.charts import BOTTOM, LEFT, TOP, Linear, Log, canvas, draw_axes, draw_label, node, number

#: Size of a chart, space between charts, and height of a title and of a line of text, in pixels.
WIDTH, HEIGHT, GAP, LINE = 620, 420, 30, 26
#: Colours of series, on light and on dark pages.
LIGHT = ("#1f5fbf", "#b3372b", "#2a7f55", "#9a6a10", "#7446b0", "#b83d84", "#0c7f8c", "#6b5346")
DARK = ("#7fb0ff", "#ff9d8f", "#6fd0b2", "#e3b25c", "#c3a5f5", "#ef9ac4", "#6fd3e0", "#c9b3a5")


def _variables(page: str, ink: str, soft: str, line: str, colours: Sequence[str]) -> str:
    names = {"page": page, "ink": ink, "soft": soft, "line": line}
    names |= {f"colour{index}": colour for index, colour in enumerate(colours)}
    return " ".join(f"--{name}: {value};" for name, value in names.items())


STYLE = f"""
svg {{ font: 12px system-ui, sans-serif; background: var(--page);
  {_variables("#fff", "#1d2127", "#5d6570", "#dfdcd5", LIGHT)} }}
@media (prefers-color-scheme: dark) {{ svg {{
  {_variables("#1d2126", "#eceae5", "#a2a9b3", "#333941", DARK)} }} }}
text {{ fill: var(--soft); }} .title {{ fill: var(--ink); font-weight: 600; font-size: 14px; }}
.grid {{ stroke: var(--line); }} .axis {{ stroke: var(--soft); }}
g {{ --own: var(--soft); }} {" ".join(f".c{n} {{ --own: var(--colour{n}); }}" for n in range(len(LIGHT)))}
polyline, .to {{ fill: none; stroke: var(--own); stroke-width: 1.5; }} .to {{ stroke-width: 1; opacity: .6; }}
circle {{ fill: var(--own); stroke: var(--own); stroke-width: 1.5; }} .float32 {{ fill: var(--page); }}
.leader {{ stroke: var(--own, var(--ink)); opacity: .6; }} .bar {{ fill: var(--own); }}
.spread {{ stroke: var(--own); stroke-width: 2px; }} .settings polyline {{ opacity: .35; }}
.series text, .own {{ fill: var(--own); font-weight: 600; }}
.series text, .own, .label {{ paint-order: stroke; stroke: var(--page); stroke-width: 3px; }}
.frontier {{ fill: none; stroke: var(--ink); opacity: .45; }} circle.raw {{ fill: var(--colour0); stroke: none; }}
circle.raw:not(.best) {{ opacity: .5; }} .label.best {{ fill: var(--ink); font-weight: 600; }}
"""


class Dot(NamedTuple):
    """A setting of a system in a chart of two measures.

    Attributes:
        name: shown where the dot is pointed at.
        precision: a class of its drawing: float32 is empty, others are filled.
        spread: values of ``y`` of other seeds, if there are any.
    """

    x: float
    y: float
    name: str
    precision: str = ""
    spread: Sequence[float] = ()


class Series(NamedTuple):
    """The settings of a model, with its name and the number of its colour; None: grey."""

    name: str
    colour: int | None
    dots: list[Dot]


def settings(series: Sequence[Series], xlabel: str, ylabel: str) -> Element:
    """A line through the settings of each model, which is named once, at its best."""
    dots = [dot for _, _, dots in series for dot in dots]
    x = Log([dot.x for dot in dots], LEFT, WIDTH - 14)
    y = Linear([value for dot in dots for value in (dot.y, *dot.spread)], HEIGHT - BOTTOM, TOP)
    svg = canvas(WIDTH, HEIGHT, f"{ylabel} against {xlabel}, {len(dots)} points")
    draw_axes(svg, x, y, xlabel, ylabel, WIDTH, HEIGHT)
    taken, names = [], []
    for name, colour, dots in series:
        group = node(svg, "g", class_=f"settings {colour_class(colour)}")
        points = [(x(dot.x), y(dot.y)) for dot in dots]
        node(group, "polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points))
        for dot, (a, b) in zip(dots, points, strict=True):
            if dot.spread:
                node(group, "line", x1=a, x2=a, y1=y(min(dot.spread)), y2=y(max(dot.spread)), class_="spread")
            circle = node(group, "circle", cx=a, cy=b, r=4, class_=dot.precision)
            node(circle, "title", f"{dot.name}: {number(dot.y)} {ylabel}, {number(dot.x)} {xlabel}")
            taken.append((a - 5, b - 5, a + 5, b + 5))
        best = max(range(len(dots)), key=lambda index: dots[index].y)
        names.append((group, name, points[best]))
    for group, name, point in names:
        draw_label(group, name, point, taken, (LEFT, 0, WIDTH, HEIGHT - BOTTOM), bold=True, class_="own")
    return svg


def bars(values: Mapping[str, float], colours: Mapping[str, int], unit: str) -> Element:
    """A horizontal bar for each value, with its name and number."""
    left, row, longest = 250, 16, max(values.values())
    height = row * len(values) + 8
    svg = canvas(2 * WIDTH, height, f"{unit} of {len(values)} settings")
    for index, (name, value) in enumerate(values.items()):
        top, width = row * index, max((2 * WIDTH - left - 60) * value / longest, 1)
        node(svg, "text", name, x=left - 8, y=top + 13, text_anchor="end")
        group = node(svg, "g", class_=f"c{colours[name] % len(LIGHT)}")
        node(group, "rect", x=left, y=top + 3, width=width, height=row - 5, class_="bar")
        node(svg, "text", number(value), x=left + width + 6, y=top + 13)
    return svg


def colour_class(colour: int | None) -> str:
    return "other" if colour is None else f"c{colour % len(LIGHT)}"


def write_picture(
    path: Path,
    title: str,
    charts: Sequence[tuple[str, Element]],
    facts: str,
    keys: Sequence[tuple[str, int | None]] = (),
) -> None:
    """Write charts, two beside each other, with their titles.

    Args:
        path: an .svg.
        title: of the whole; may be empty.
        charts: title and element of each.
        facts: a line below all.
        keys: what colours mean, where charts do not name it.
    """
    figure = Element("svg", xmlns="http://www.w3.org/2000/svg")
    node(figure, "style", STYLE)
    top, width = 0, WIDTH
    if title:
        node(figure, "text", title, x=2, y=20, class_="title")
        top = LINE
    for first in range(0, len(charts), 2):
        sizes = [tuple(map(int, chart.get("viewBox", "").split()[2:])) for _, chart in charts[first : first + 2]]
        left = 0
        for (name, chart), (wide, high) in zip(charts[first : first + 2], sizes, strict=True):
            node(figure, "text", name, x=left + 2, y=top + 20, class_="title")
            chart.attrib |= {"x": str(left), "y": str(top + LINE), "height": str(high)}
            figure.append(chart)
            left += wide + GAP
            width = max(width, left - GAP)
        top += LINE + max(high for _, high in sizes) + 10
    left = 2
    for name, colour in keys:
        group = node(figure, "g", class_=colour_class(colour))
        node(group, "circle", cx=left + 5, cy=top + 10, r=4)
        node(group, "text", name, x=left + 14, y=top + 14, class_="own")
        left += 40 + 8 * len(name)
    top += LINE * bool(keys)
    node(figure, "text", facts, x=2, y=top + 14)
    figure.set("viewBox", f"0 0 {width} {top + LINE}")
    path.write_bytes(tostring(figure))
