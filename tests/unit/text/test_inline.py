"""Markup in text: every element around its words once, nothing lost, added or crossed. The translator is one that
writes words in capital letters, in an order that is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amlp_fairseq.text.documents import Document
from amlp_fairseq.text.inline import Segment

Order = Callable[[list[int]], list[int]]


def as_it_is(order: list[int]) -> list[int]:
    return order


def backwards(order: list[int]) -> list[int]:
    return order[::-1]


def capitals(text: str, order: Order) -> tuple[str, list[int | None]]:
    """The words of a text in capital letters, in another order, and what each character stands for."""
    words = [(match.start(), match[0].upper()) for match in re.finditer(r"[\w'-]+|[^\w\s]", text)]
    result, links = "", list[int | None]()
    for index in order([*range(len(words))]):
        place, word = words[index]
        if result and (order is not as_it_is or text[place - 1 : place].isspace()):
            result, links = result + " ", [*links, None]
        result, links = result + word, links + [place] * len(word)
    return result, links


def written(source: str, order: Order = as_it_is, keep: Sequence[str] = ()) -> str:
    document = Document.read(source, "html", *([keep] if keep else []))
    return document.put([segment.put(*capitals(segment.text, order)) for segment in document.segments])


def texts(source: str) -> list[str]:
    return [segment.text for segment in Document.read(source, "html").segments]


@pytest.mark.parametrize(
    ("source", "text", "forwards", "reversed_"),
    [
        ("<p>a <b>big</b> cat</p>", ["a big cat"], "<p>A <b>BIG</b> CAT</p>", "<p>CAT <b>BIG</b> A</p>"),
        (
            "see <a href='x'>the <i>red</i> page</a> now",
            ["see the red page now"],
            "SEE <a href='x'>THE <i>RED</i> PAGE</a> NOW",
            "NOW <a href='x'>PAGE <i>RED</i> THE</a> SEE",
        ),
        ("<p> <b>all <i>of</i> it</b></p>", ["all of it"], "<p> <b>ALL <i>OF</i> IT</b></p>", None),
        ("one two <img src=a>", ["one two"], "ONE TWO <img src=a>", "TWO ONE <img src=a>"),
        ("an <img src=a> ox", ["an ox"], "AN <img src=a> OX", "<img src=a> OX AN"),
        ("at {0}, or %s.", ["at, or."], "AT {0}, OR %s.", None),
        ("mail a.b@c.de or x", ["mail or x"], "MAIL a.b@c.de OR X", "X a.b@c.de OR MAIL"),
        ("at http://a.b/?c=1&amp;d=2.", ["at."], "AT http://a.b/?c=1&amp;d=2.", None),
        ("a <code>x < 1</code> b", ["a b"], "A <code>x < 1</code> B", None),
        ("a <i translate=no>b <i>c</i></i> d", ["a d"], "A <i translate=no>b <i>c</i></i> D", None),
        ("H<sub>2</sub>O is", ["H2O is"], "H<sub>2</sub>O IS", "IS H<sub>2</sub>O"),
        ("t&eacute; &lt;b&gt; &amp;c &nbsp; &copy; d", ["té <b> &c © d"], "TÉ &lt;B&gt; &amp;C © D", None),
        ("<i>un</i>closed <b>tag", ["unclosed tag"], "<i>UN</i>CLOSED <b>TAG", None),
        ("a <b>b <i>c</b> d</i> e", ["a b c d e"], "A <b>B <i>C</b> D</i> E", None),
        ("a<br>b<!-- c --> d <b></b>", ["a", "b d"], "A<br>B<!-- c --> D <b></b>", None),
        ("<pre>a  b\n\tc</pre>", ["a", "b", "c"], "<pre>A  B\n\tC</pre>", None),
        ("<script>if (a<b) c('<p>d</p>')</script><style>a{b:c}</style>", [], None, None),
        ("<p title='a b' data-x=c>1 + 2 &amp; &#8364;</p >", [], None, None),
        ("<b>{0}</b> of <a>{1}</a>", ["of"], "<b>{0}</b> OF <a>{1}</a>", None),
        ("<!DOCTYPE html><?php a ?><![CDATA[b]]><a href=c", [], None, None),
        (
            "a < b &unknown; & c &#x &",
            ["a < b &unknown; & c &#x &"],
            "A &lt; B &amp;UNKNOWN; &amp; C &amp;#X &amp;",
            None,
        ),
        ("", [], None, None),
    ],
)
def test_places(source: str, text: list[str], forwards: str | None, reversed_: str | None) -> None:
    assert texts(source) == text
    assert written(source) == (source if forwards is None else forwards)
    if reversed_ is not None:
        assert written(source, backwards) == reversed_


def test_kept_by_a_pattern() -> None:
    assert written("the Foo Bar of 12 km", keep=[r"Foo Bar", r"\d+ km"]) == "THE Foo Bar OF 12 km"
    with pytest.raises(ValueError, match=r"--keep '\[' is not a regular expression"):
        written("a", keep=["["])
    with pytest.raises(ValueError, match="format='pdf': choose one of"):
        Document.read("a", "pdf")


def test_an_element_stays_with_its_words() -> None:
    """One word elsewhere that is aligned with it, or a mark, does not make it long."""
    [segment] = Document.read("the <b>red car</b> stops here.", "html").segments
    text = "CAR THE RED STOPS HERE."
    links = [*[8] * 3, None, *[0] * 3, None, *[4] * 3, None, *[12] * 5, None, *[4] * 4, 22]
    assert segment.put(text, links) == "<b>CAR</b> THE RED STOPS HERE."
    links = [*[8] * 3, None, *[4] * 3, None, *[4] * 3, None, *[12] * 5, None, *[18] * 4, 8]
    assert segment.put(text, links) == "<b>CAR THE RED</b> STOPS HERE."


def test_more_elements_than_words() -> None:
    [segment] = Document.read("<i>a</i> <b>b</b> <u>c</u> {0}", "html").segments
    assert Counter(re.findall("<[^>]*>", segment.put("x", [None]))) == Counter("<i> </i> <b> </b> <u> </u>".split())
    assert re.findall(r"\{0\}", segment.put("", [])) == ["{0}"]


def marked(depth: int) -> st.SearchStrategy[str]:
    """Well-formed markup with numbered attributes."""
    words = st.sampled_from(["a ", "bc", " d", " e f ", ", ", "g. ", "漢字", "&amp;", " "])
    things = st.sampled_from(["<img>", "{0}", " {x} ", " http://a.b ", "<code>q</code>", "<!--z-->"])
    if depth == 0:
        return st.one_of(words, things)
    inner = st.lists(marked(depth - 1), max_size=4).map("".join)
    element = st.tuples(st.sampled_from(["b", "i", "span"]), inner).map(
        lambda each: f"<{each[0]}>{each[1]}</{each[0]}>"
    )
    return st.one_of(words, things, element)


class Balance(HTMLParser):
    """Raises AssertionError where elements cross."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.feed(text)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened += [tag] * (tag != "img")

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


THINGS = re.compile(r"<!--z-->|<[^>]*>(?:q</code>)?|\{\w\}|http://a\.b")


@given(st.lists(marked(3), max_size=5).map("".join), st.data())
def test_nothing_is_lost_added_or_crossed(source: str, data: st.DataObject) -> None:
    """With any alignment, and words lost and added by the model."""
    document = Document.read(source, "html")
    assert document.put([raw(source, segment) for segment in document.segments]) is not None
    result, expected = [], []
    for segment in document.segments:
        words = data.draw(st.lists(st.sampled_from(["A", "BC", "漢", ".", "D-E"]), max_size=6))
        text = " ".join(words)
        places = st.none() | st.integers(0, len(segment.text) - 1)
        links = data.draw(st.lists(places, min_size=len(text), max_size=len(text)))
        result.append(segment.put(text, links))
        expected.append("".join(text.split()))
        Balance(result[-1])
        assert "".join(THINGS.sub("", result[-1]).split()) == expected[-1]
    found = document.put(result)
    assert Counter(THINGS.findall(found)) == Counter(THINGS.findall(source))
    Balance(found)


def raw(source: str, segment: Segment) -> str:
    return segment.put(segment.text, [*range(len(segment.text))])


@given(st.lists(marked(3), max_size=5).map("".join))
def test_the_same_text_is_the_same_page(source: str) -> None:
    """A model that copies gives back the page, but for runs of spaces and the space beside things."""
    document = Document.read(source, "html")
    found = document.put([raw(source, segment) for segment in document.segments])
    assert "".join(found.split()) == "".join(source.split())


@given(st.text(st.sampled_from([*"<>/&;#!-?[]ab =\"'\n"]), max_size=30))
def test_any_characters(source: str) -> None:
    pieces = Document.read(source, "html").pieces
    rest = "".join(piece for piece in pieces if isinstance(piece, str))
    assert all(character in source for character in rest)
    if not any(map(str.isalpha, source)):
        assert rest == source


def test_an_element_without_words_stands_beside_the_others() -> None:
    """All words are aligned with the second element, in the middle of which the first would stand."""
    document = Document.read("a <b>a a </b><i>a a</i>", "html")
    (segment,) = document.segments
    found = segment.put("A A", [7, None, 6])
    assert found == "<b></b><i>A A</i>"
