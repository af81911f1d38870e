"""Documents of many kinds in three scripts: every part in its place. The translator is one that writes another letter
for each, so that the translated document is known: the source with other letters, but for what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

import pytest

from amlp_fairseq.text.documents import FORMATS, Document
from amlp_fairseq.text.plain import BLOCK, width_of, wrapped

LATIN = "The quick brown fox jumps over the lazy dog near the old mill, but the dog sleeps on and hears nothing of it."
CYRILLIC = (
    "Быстрая лиса прыгает через ленивого пса у старой мельницы, но пёс спит дальше и ничего об этом не слышит, увы."
)
CHINESE = "敏捷的狐狸跳过了懒狗旁边的老磨坊但是狗还在睡觉什么也没有听到因为今天天气非常好所以大家都在外面散步聊天喝茶"
SCRIPTS = {"Latin": LATIN, "Cyrillic": CYRILLIC, "Han": CHINESE}


def other(character: str) -> str:
    """Another letter of the same width, and the same for all else."""
    if "\u4e00" <= character < "\u9000":
        return chr(ord(character) + 1)
    return character.swapcase() if len(character.swapcase()) == 1 else character


def expected(source: str, kept: Sequence[str]) -> str:
    """The source with other letters, but for some strings in it, in their order."""
    result = ""
    for string in kept:
        before, found, source = source.partition(string)
        assert found, string
        result += "".join(map(other, before)) + found
    return result + "".join(map(other, source))


def translated(source: str, format: str = "text") -> str:
    document = Document.read(source, format)
    return document.put(
        [segment.put("".join(map(other, segment.text)), [*range(len(segment.text))]) for segment in document.segments]
    )


def texts(source: str, format: str = "text") -> list[str]:
    return [segment.text for segment in Document.read(source, format).segments]


def hard(text: str, before: str = "", between: str = "") -> str:
    """A paragraph with hard line breaks, of 60 columns."""
    return before + wrapped(text, before=before, between=f"\n{between}", width=60)


def words(script: str) -> list[str]:
    text = SCRIPTS[script]
    return text.split()[:6] if script != "Han" else [text[index : index + 3] for index in range(0, 18, 3)]


def mail(script: str) -> tuple[str, list[str], int]:
    text, short = SCRIPTS[script], words(script)[0]
    source = (
        f"{short},\n\n{hard(text)}\n\n{hard(text, '> ', '> ')}\n> > {short}\n\n-- \n{short}\n+49 30 1234 <a.b@c.org>\n"
    )
    return source, ["<a.b@c.org>"], 5


def manual(script: str) -> tuple[str, list[str], int]:
    text, short = SCRIPTS[script], words(script)
    source = f"{short[0]}\n{hard(text, ' ' * 7, ' ' * 7)}\n\n{short[1]}\n       -q, --quiet=X\n"
    source += f"{hard(text, ' ' * 14, ' ' * 14)}\n"
    return source, ["-q, --quiet=X"], 4


def items(script: str) -> tuple[str, list[str], int]:
    text, short = SCRIPTS[script], words(script)
    source = f" - {short[0]}\n{hard(text, ' * ', ' ' * 3)}\n   1. {short[1]}\n   2) {short[2]}\n\n===\n 12, 13\n\n\n"
    source += f"• [x] {short[3]}\n"
    return source, ["[x]"], 5


def table(script: str) -> tuple[str, list[str], int]:
    a, b, c, d, *_ = words(script)
    return (
        f"| {a} | {b} |\n|---|--:|\n| {c} | 12 |\n\n{a}\t{b}\t\t{d}\n\n{a}     {b}      3.5\n{c}     12      {d}\n",
        [],
        10,
    )


def changelog(script: str) -> tuple[str, list[str], int]:
    text, short = SCRIPTS[script], words(script)
    source = f"2.1 (2024-05-06)\n----------------\n\n{hard(text, '  * ', ' ' * 4)}\n"
    return f"{source}    + {short[0]}\n  * {short[1]}\n", [], 3


def code(script: str) -> tuple[str, list[str], int]:
    text, short = SCRIPTS[script], words(script)
    source = (
        f"{hard(text, '# ', '# ')}\nimport os\nx = f(y)  # {short[0]}\n\nint main(void) {{\n"
        f"    return x(1); // {short[1]}\n}}\n\n{hard(text, '/* ', ' * ')}\n */\n"
    )
    return source, ["import os\nx = f(y)", "int main(void) {\n    return x(1);"], 4


KINDS = [mail, manual, items, table, changelog, code]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("script", SCRIPTS)
def test_plain_text(kind: object, script: str) -> None:
    source, kept, count = kind(script)  # type: ignore[operator]
    assert translated(source) == expected(source, kept)
    found = texts(source)
    assert len(found) == count
    if kind is not table:
        assert SCRIPTS[script] in found  # in one piece


def test_line_breaks() -> None:
    """A break where the next word would have fitted stays."""
    assert texts("Ann Other\n12 Long Street\nOld Town\n") == ["Ann Other", "12 Long Street", "Old Town"]
    verse = "Tell me not, in mournful numbers,\nLife is but an empty dream!\nFor the soul is dead\n"
    assert len(texts(verse)) == 3
    justified = dedent("""\
        This   is  a  paragraph  of  a  manual  page,  which  has
        as many spaces  between words as make  the  lines equally
        long.
    """)
    assert len(texts(justified)) == 1
    assert texts("a line\r\nanother  \r\n") == ["a line", "another"]
    assert translated("a line\r\nanother  \r\n\r\n") == "A LINE\r\nANOTHER  \r\n\r\n"
    assert translated("\ufeffa\n\n\n\n b") == "\ufeffA\n\n\n\n B"


def test_longer_translations_are_wrapped_as_the_source_was() -> None:
    document = Document.read(hard(LATIN, "> ", "> ") + "\n", "text")
    [segment] = document.segments
    twice = " ".join([segment.text] * 2)
    found = document.put([segment.put(twice, [])])
    assert " ".join(line.removeprefix("> ") for line in found.splitlines()) == twice
    assert all(line.startswith("> ") and width_of(line) <= 60 for line in found.splitlines())
    assert found.endswith("\n")


@pytest.mark.parametrize("format", FORMATS)
def test_what_has_no_words_stays(format: str) -> None:
    source = {"srt": "1\n00:00:01,000 --> 00:00:02,500\n12!\n\n"}.get(format, "12\n\n  ?! \n* 3 | 4\n\t\n")
    if format not in ("po", "xliff", "tmx"):
        assert texts(source, format) == []
        assert translated(source, format) == source


def test_streams_in_parts() -> None:
    """Of plain text, also without empty lines."""
    lines = ["a b\n", "\n", "\n", *["c d\n"] * 2 * BLOCK]
    parts = [*Document.stream(lines, "text")]
    assert [len(part.segments) for part in parts] == [1, BLOCK, BLOCK]
    assert "".join(part.put([segment.text for segment in part.segments]) for part in parts) == "".join(lines)
