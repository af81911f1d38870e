"""Names in a figure of matplotlib that stand beside what they name, and not over each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Between the names of lines that end close to each other, as a share of the height of a name.
GAP = 1.1
#: Where a point's name may stand, in points from it, with its alignment.
PLACES = (
    *((6, -3, "left"), (-6, -3, "right"), (0, 7, "center"), (0, -13, "center")),
    *((6, 6, "left"), (-6, 6, "right"), (6, -12, "left"), (-6, -12, "right")),
    *((6, 14, "left"), (-6, 14, "right"), (6, -20, "left"), (-6, -20, "right")),
    *((6, 24, "left"), (-6, 24, "right"), (6, -30, "left"), (-6, -30, "right")),
)


def label_ends(axes: Any, size: float = 8) -> None:
    """The label of each line at its right end, in its colour."""
    figure = axes.figure
    figure.draw_without_rendering()
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    right = max(line.get_xdata()[-1] for line in lines)
    wanted = [axes.transData.transform((right, line.get_ydata()[-1]))[1] for line in lines]
    step = GAP * size * figure.dpi / 72
    places: dict[int, float] = {}
    lowest = axes.bbox.y0 - step
    for index in sorted(range(len(lines)), key=lambda index: wanted[index]):
        places[index] = lowest = max(wanted[index], lowest + step)
    highest = axes.bbox.y1 + step
    for index in sorted(places, key=lambda index: -places[index]):
        places[index] = highest = min(places[index], highest - step)
    for index, line in enumerate(lines):
        end = (right, line.get_ydata()[-1])
        up = (places[index] - wanted[index]) * 72 / figure.dpi
        axes.annotate(
            line.get_label(), end, xytext=(12, up), textcoords="offset points", va="center", fontsize=size,
            color=line.get_color(), fontweight="bold" if line.get_linewidth() > 2 else "normal", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "lw": 0.5, "shrinkA": 1, "shrinkB": 2,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def label_points(axes: Any, points: Mapping[str, tuple[float, float]], bold: set[str], size: float = 8) -> None:
    """The name of each point beside it: those in ``bold`` first, the others where there is room."""
    figure = axes.figure
    figure.draw_without_rendering()
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in map(axes.transData.transform, points.values())]
    frame = axes.bbox
    for name in sorted(points, key=lambda name: (name not in bold, -points[name][1])):
        style = {"fontsize": size, "fontweight": "bold" if name in bold else "normal"}
        for right, up, side in PLACES:
            text = axes.annotate(
                name, points[name], xytext=(right, up), textcoords="offset points", ha=side, in_layout=False, **style
            )
            box = tuple(text.get_window_extent().extents)
            inside = box[0] >= frame.x0 and box[1] >= frame.y0 and box[2] <= frame.x1 and box[3] <= frame.y1
            if inside and not any(
                box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
            ):
                taken.append(box)
                break
            text.remove()
