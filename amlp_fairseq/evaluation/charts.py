"""Charts as elements of SVG, with labels beside what they name; colours are the classes of ``report.html``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement

#: Sizes in units of the SVG, which are pixels on the page.
FONT, GAP, TOP, BOTTOM, LEFT = 12, 15, 14, 42, 54
#: The largest distance of a label from its point.
OFFSETS = (
    *((9, 4), (-9, 4), (-9, -8), (9, -8), (0, -10), (0, 20), (9, 16), (-9, 16)),
    *((9, -20), (-9, -20), (9, 28), (-9, 28), (-9, -32), (-9, 40)),
)
#: Further away, where a line leads from a bold label to its point; the nearest first.
FAR = sorted(
    ((right, down) for right in range(-160, 161, 20) for down in range(-160, 161, 20)), key=lambda at: math.hypot(*at)
)
#: With more points than these only the frontier's have labels: the others' could not be told apart.
MOST_LABELS = 40

Box = tuple[float, float, float, float]


class Point(NamedTuple):
    """One way of decoding a model: what it costs, its BLEU or other score, whether its training targets were distilled,
    and the name of the model where it is not the point's."""

    cost: float
    bleu: float
    name: str
    distilled: bool = False
    model: str = ""


def node(parent: Element, tag: str, text: object = None, **attributes: object) -> Element:
    """A new child; underscores of attributes' names are hyphens, a last one is dropped."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    child = SubElement(parent, tag, {name: _text(value) for name, value in names.items()})
    child.text = None if text is None else str(text)
    return child


def number(value: float) -> str:
    """At least three digits: 0.58, 12.4, 1,234."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points than which no other costs less and is better, by ascending cost."""
    found: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.bleu)):
        if not found or point.bleu > found[-1].bleu:
            found.append(point)
    return found


def scatter(points: Sequence[Point], cost: str, width: int, height: int, score: str = "BLEU") -> Element:
    """Scores over the logarithm of a cost, with the frontier. The frontier's points get labels first, then of the
    others, where they are few, those that there is room for; all have their name and values as a tooltip."""
    best = frontier(points)
    x = Log([point.cost for point in points], LEFT, width - 14)
    y = Linear([point.bleu for point in points], height - BOTTOM, TOP)
    svg = canvas(width, height, f"{score} against {cost}, {len(points)} points")
    draw_axes(svg, x, y, cost, score, width, height)
    corners = [(x(point.cost), y(point.bleu)) for point in best] + [(width - 14.0, y(best[-1].bleu))]
    taken: list[Box] = []
    for (left, low), (right, high) in pairwise(corners):
        node(svg, "path", d=f"M{left:.1f} {low:.1f} H{right:.1f} V{high:.1f}", class_="frontier")
        taken += [(left, low - 1, right, low + 1), (right - 1, high, right + 1, low)]
    for point in sorted(points, key=lambda point: point in best):
        at = (x(point.cost), y(point.bleu))
        kind = f"{'distilled' if point.distilled else 'raw'}{' best' if point in best else ''}"
        dot = node(svg, "circle", cx=at[0], cy=at[1], r=5.5 if point in best else 4, class_=kind)
        node(dot, "title", f"{point.name}: {number(point.bleu)} {score}, {number(point.cost)} {cost}")
    room = (LEFT, 0, width, height - BOTTOM)
    others = [point for point in sorted(points, key=lambda point: -point.bleu) if point not in best]
    for group, labelled in ((best[::-1], True), (others, len(points) <= MOST_LABELS)):
        places = [(x(point.cost), y(point.bleu)) for point in group]
        taken += [(left - 5, top - 5, left + 5, top + 5) for left, top in places]
        for point, place in zip(group, places, strict=True):
            if labelled:
                bold = group is not others
                draw_label(svg, point.name, place, taken, room, bold, "label best" if bold else "label")
    return svg


def series_of(rows: Sequence[Mapping[str, Any]], name: str, x: str, y: str) -> dict[str, dict[float, float]]:
    """Fields of rows as name → x → y, without what was not measured or has no logarithm."""
    series: dict[str, dict[float, float]] = {}
    for row in rows:
        if is_number(row.get(y)) and row[y] > 0:
            series.setdefault(row[name], {})[row[x]] = row[y]
    return series


def is_number(value: object) -> bool:
    """True for a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def lines(
    series: Mapping[str, Mapping[float, float]],
    colours: Mapping[str, int],
    xlabel: str,
    ylabel: str,
    width: int,
    height: int,
    ticks: Sequence[str] = (),
    linear: bool = False,
) -> Element:
    """Lines over two axes, each with its name at its end.

    Args:
        series: name → x → y.
        colours: which names stand out, in the page's colours from 0 on; the others are grey.
        ticks: names of x = 0, 1, …, at equal distances; without them x is logarithmic.
        linear: whether y is linear; it is logarithmic otherwise.
    """
    xs = sorted({x for values in series.values() for x in values})
    ys = [value for values in series.values() for value in values.values()]
    right = width - 12 - max(_width(name, bold=True) for name in series)
    x = Named(ticks, LEFT + 8, right) if ticks else Log(xs, LEFT + 8, right, padded=False, ticks=xs)
    y = Linear(ys, height - BOTTOM, TOP) if linear else Log(ys, height - BOTTOM, TOP, decades=True)
    svg = canvas(width, height, f"{ylabel} over {xlabel}: {', '.join(series)}")
    draw_axes(svg, x, y, xlabel, ylabel, width, height)
    ends = {name: (max(values), values[max(values)]) for name, values in series.items()}
    heights = _apart([y(ends[name][1]) for name in series], TOP, height - BOTTOM)
    for name in sorted(series, key=lambda name: name in colours):
        group = node(svg, "g", class_=f"series c{colours[name]}" if name in colours else "series other")
        points = [(x(key), y(value)) for key, value in sorted(series[name].items())]
        node(group, "polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points))
        for (key, value), (a, b) in zip(sorted(series[name].items()), points, strict=True):
            node(node(group, "circle", cx=a, cy=b, r=3), "title", f"{name}, {x.label(key)}: {number(value)} {ylabel}")
        place = heights[list(series).index(name)]
        if abs(place - points[-1][1]) > 4 or points[-1][0] < right - 1:
            node(group, "path", d=f"M{points[-1][0] + 4:.1f} {points[-1][1]:.1f} L{right + 7} {place:.1f}", class_="to")
        node(group, "text", name, x=right + 9, y=place + 4)
    return svg


class Linear:
    """Maps values to places from ``begin`` to ``end``."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = min(values), max(values)
        room = (high - low or 1) * 0.08
        self.low, self.high, self.begin, self.end = low - room, high + room, begin, end
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        step = next(step * factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= 7)
        self.ticks = [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def label(self, value: float) -> str:
        """The name of a value below the axis."""
        return f"{value:,g}" if value < 10_000 else f"{value:,.0f}"


class Log(Linear):
    """The same by the logarithm; all values must be positive."""

    def __init__(
        self,
        values: Sequence[float],
        begin: float,
        end: float,
        padded: bool = True,
        decades: bool = False,
        ticks: Sequence[float] = (),
    ) -> None:
        low, high = math.log(min(values)), math.log(max(values))
        room = max((high - low) * 0.06, 0.05) if padded or low == high else 0
        self.low, self.high, self.begin, self.end = low - room, high + room, begin, end
        powers = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
        for digits in ((1,), (1, 2, 5)):
            marks = [digit * 10.0**power for power in powers for digit in digits]
            self.ticks = [mark for mark in marks if self.low <= math.log(mark) <= self.high]
            if len(self.ticks) >= (3 if decades else 4):
                break
        else:
            even = Linear([math.exp(self.low), math.exp(self.high)], begin, end).ticks
            self.ticks = [tick for tick in even if tick > 0 and self.low <= math.log(tick) <= self.high]
        self.ticks = list(ticks) or self.ticks

    def __call__(self, value: float) -> float:
        return super().__call__(math.log(value))


class Named(Linear):
    """Maps 0, 1, … to places at equal distances, which have names."""

    def __init__(self, names: Sequence[str], begin: float, end: float) -> None:
        self.low, self.high, self.begin, self.end = 0.0, float(max(len(names) - 1, 1)), begin, end
        self.names, self.ticks = names, [float(n) for n in range(len(names))]

    def label(self, value: float) -> str:
        return self.names[int(value)]


def _text(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _width(text: str, bold: bool = False) -> float:
    """About as wide as a text gets in the fonts of the page."""
    return (0.69 if bold else 0.61) * FONT * len(text)


def canvas(width: int, height: int, label: str) -> Element:
    """An empty chart; ``label`` is for those who do not see it."""
    return Element("svg", {"viewBox": f"0 0 {width} {height}", "width": str(width), "role": "img", "aria-label": label})


def draw_axes(svg: Element, x: Linear, y: Linear, xlabel: str, ylabel: str, width: int, height: int) -> None:
    """The grid, ticks, and what the axes are: below the one, above the other."""
    bottom = height - BOTTOM
    for tick in y.ticks:
        node(svg, "line", x1=LEFT, x2=int(x.end), y1=y(tick), y2=y(tick), class_="grid")
        node(svg, "text", f"{tick:,g}", x=LEFT - 7, y=y(tick) + 4, class_="tick", text_anchor="end")
    last = -math.inf
    for tick in x.ticks:
        name = x.label(tick)
        half = _width(name) / 2
        if x(tick) - half > last + 5:
            node(svg, "text", name, x=x(tick), y=bottom + 17, class_="tick", text_anchor="middle")
            node(svg, "line", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 4, class_="axis")
            last = x(tick) + half
    node(svg, "line", x1=LEFT, x2=int(x.end), y1=bottom, y2=bottom, class_="axis")
    node(svg, "text", f"{xlabel} →", x=int(x.end), y=height - 5, class_="name", text_anchor="end")
    node(svg, "text", f"↑ {ylabel}", x=2, y=height - 5, class_="name")


def draw_label(
    svg: Element, name: str, at: tuple[float, float], taken: list[Box], room: Box, bold: bool, class_: str
) -> None:
    """Write the name of a point within ``room`` where it hides nothing of ``taken``, to which it is added, if there is
    such a place; a bold one may be further away, with a line to the point."""
    wide = _width(name, bold)
    for right, down in (*OFFSETS, *(FAR if bold else ())):
        left = at[0] + right - (wide if right < 0 else wide / 2 if right == 0 else 0)
        box = (left - 2, at[1] + down - FONT + 1, left + wide + 2, at[1] + down + 3)
        inside = box[0] >= room[0] and box[1] >= room[1] and box[2] <= room[2] and box[3] <= room[3]
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            if (right, down) not in OFFSETS:
                low, high = box[1] + 2, box[3] - 2
                end = {"x2": min(max(at[0], box[0]), box[2]), "y2": min(max(at[1], low), high)}
                node(svg, "line", x1=at[0], y1=at[1], class_="leader", **end)
            anchor = "end" if right < 0 else "middle" if right == 0 else "start"
            place = {"x": at[0] + right, "y": at[1] + down, "text_anchor": anchor}
            node(svg, "text", name, class_=class_, **place)
            return


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _apart(places: Sequence[float], low: float, high: float) -> list[float]:
    """Places at least ``GAP`` from each other, in the same order, close to those given."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = list(places)
    for before, index in pairwise(order):
        found[index] = max(found[index], found[before] + GAP)
    limit = high
    for index in reversed(order):
        found[index] = min(found[index], limit)
        limit = found[index] - GAP
    return [max(place, low) if len(places) * GAP <= high - low else place for place in found]
