"""Charts: which points are on the frontier, and where a name stands when its point is among others."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from amlp_fairseq.evaluation.charts import Point, draw_label, frontier

POINT, ROOM = (200.0, 100.0), (0.0, 0.0, 400.0, 300.0)


def drawn(taken: list[tuple[float, float, float, float]], bold: bool) -> dict[str, dict[str, str]]:
    """The attributes of the elements of a label, by tag."""
    svg = Element("svg")
    draw_label(svg, "ibdecoder", POINT, taken, ROOM, bold, "own")
    return {child.tag: child.attrib for child in svg}


def test_a_name_stands_beside_its_point() -> None:
    found = drawn([], bold=True)
    assert found.keys() == {"text"}
    assert abs(float(found["text"]["x"]) - POINT[0]) < 10


def test_a_bold_name_that_has_no_room_there_stands_further_away_with_a_line() -> None:
    crowd = (150.0, 60.0, 250.0, 145.0)
    taken = [crowd]
    found = drawn(taken, bold=True)
    assert found.keys() == {"text", "line"}
    line = {name: float(value) for name, value in found["line"].items() if name != "class"}
    assert (line["x1"], line["y1"]) == POINT
    left, top, right, bottom = taken[-1]
    assert left <= line["x2"] <= right
    assert top <= line["y2"] <= bottom
    assert right <= crowd[0] or left >= crowd[2] or bottom <= crowd[1] or top >= crowd[3]
    assert ROOM[0] <= left < right <= ROOM[2]


def test_other_names_are_left_out() -> None:
    assert drawn([(150.0, 60.0, 250.0, 145.0)], bold=False) == {}


def test_a_name_without_any_room_is_left_out() -> None:
    assert drawn([ROOM], bold=True) == {}


def test_frontier() -> None:
    points = [Point(*at, "a") for at in ((3, 20), (1, 10), (2, 9), (3, 19), (4, 20), (5, 21))]
    assert frontier(points) == [Point(1, 10, "a"), Point(3, 20, "a"), Point(5, 21, "a")]
