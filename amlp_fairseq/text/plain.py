"""Plain text as pieces of a document: paragraphs, also with hard line breaks, lists, tables, quoted mail, code."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from amlp_fairseq.text.inline import Piece, Token, has_words, pieces

#: Lines of a block at most, that a text without empty lines needs no more memory.
BLOCK = 1000
#: Columns of the narrowest text that is taken for one with hard line breaks.
NARROWEST = 40
#: What stands before the text of a line: marks of a quotation or a comment, and of an item of a list.
_SAME = r"(?P<same>\s*(?:(?:>\s?)+\s*)?(?:(?://[/!]?|\#+|;+|--|\.\.|dnl|/\*+%s)(?=\s)\s+)?)"
_ITEM = r"(?P<item>(?:(?:[-*+•‣▪◦·–—o]|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,4})[.)]|\(\w{1,3}\))\s+)?(?:\[[ xX]\]\s+)?)"
_BEGIN, _BEGIN_IN_COMMENT = re.compile(_SAME % "" + _ITEM), re.compile(_SAME % r"|\*+" + _ITEM)
#: What stands between cells of a row: bars, tabs, or spaces; two of them may also stand between words.
_BETWEEN = re.compile(r"\s*\|+\s*|\s*\t\s*|(?<=\S) {2,}(?=\S)")
#: Lines of programs; a comment after them is text.
_CODE = re.compile(
    r"[{}]\s*$|^\s*[{}]|\)\s*[;:{]\s*$|=.*;\s*$|^\s*[\w.\[\]'\"]+\s*[-+*/|:]?=\s*\S|^\s*(?:>>>|\$|\.\.\.)\s"
    r"|^\s*(?:import \w|from \S+ import|#include|#define|#!|def \w+\(|class \w+[(:]|(?:else|try|do)\s*:?\s*$)"
    r"|^\s*return\b.*[;)\]]\s*$"
    r"|^\s*</?\w[^>]*>\s*$"
)
_COMMENT = re.compile(r"(?<=\s)(?://+|#+|--|;;+)\s+|(?<=\s)/\*+\s*")
_WIDE = r"\u2e80-\u303e\u3040-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6"
#: A word with the spaces before it; in scripts without spaces a character with the marks that close.
_UNIT = re.compile(rf"(\s*)([{_WIDE}][、。，．：；？！」』）】》〉〕〗’”]*|[^\s{_WIDE}]+)")
_JOINED = re.compile(rf"[{_WIDE}]")


def read(text: str, keep: tuple[str, ...]) -> Iterator[Piece]:
    """The pieces of a text; see ``html.read``."""
    for block in blocks(re.split(r"(?<=\n)", text)):
        yield from read_block(block, keep)


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """The blocks of a text, each with the empty lines after it."""
    block: list[str] = []
    for line in filter(None, lines):
        if block and ((line.strip() and not block[-1].strip()) or len(block) >= BLOCK):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


@dataclass(frozen=True)
class _Line:
    """A line.

    Attributes:
        same: what stands before its text, as on the other lines of its paragraph.
        item: the mark of an item.
        cells: its texts, and what stands between them, by turns.
        end: its line feed, with the spaces before it.
    """

    same: str
    item: str
    cells: tuple[str, ...]
    end: str

    @property
    def body(self) -> str:
        return "".join(self.cells)

    @property
    def before_last(self) -> str:
        """What stands before the last cell."""
        return self.same + self.item + "".join(self.cells[:-1])

    @property
    def width(self) -> int:
        return width_of(self.same + self.item + self.body)


def read_block(lines: Sequence[str], keep: tuple[str, ...]) -> Iterator[Piece]:
    """The pieces of lines without empty ones between them."""
    found = _lines(lines)
    widest = max((line.width for line in found), default=0)
    index = 0
    while index < len(found):
        line, following = found[index], index + 1
        yield line.same + line.item
        for number, cell in enumerate(line.cells[:-1]):
            yield from [cell] if number % 2 else pieces([Token("text", cell, cell)], keep)
        while following < len(found) and _goes_on(found[index:following], found[following], widest):
            following += 1
        paragraph = found[index:following]
        text = _joined([line.cells[-1] for line in paragraph])
        if len(paragraph) == 1:
            yield from pieces([Token("text", text, text)], keep)
        else:
            layout = partial(wrapped, before=line.before_last, between=line.end + paragraph[1].same, width=widest)
            yield from pieces([Token("text", text, text)], keep, layout=layout)
        yield paragraph[-1].end
        index = following


def _lines(lines: Sequence[str]) -> list[_Line]:
    found, in_comment = [], False
    columns = [{match.end() for match in re.finditer(r"(?<=\S) {2,}(?=\S)", line)} for line in lines]
    widths = [width_of(line.rstrip()) for line in lines]
    for index, line in enumerate(lines):
        stripped = line.rstrip()
        in_comment = in_comment or stripped.lstrip().startswith("/*")
        end, begin = line[len(stripped) :], (_BEGIN_IN_COMMENT if in_comment else _BEGIN).match(stripped)
        in_comment = in_comment and "*/" not in stripped
        assert begin is not None
        same, item, body = begin["same"], begin["item"], stripped[begin.end() :]
        if body.endswith("*/"):
            body = body.removesuffix("*/").rstrip()
            end = line[begin.end() + len(body) :]
        beside = [other for other in (index - 1, index + 1) if 0 <= other < len(lines)]
        aligned = set().union(*(columns[other] for other in beside))
        justified = (
            not columns[index] <= aligned
            and widths[index] >= NARROWEST
            and any(widths[other] == widths[index] for other in beside)
        )
        comment = _COMMENT.search(body)
        code = body if comment is None else body[: comment.start()].rstrip()
        if _CODE.search(code) or not has_words(body):
            text = "" if comment is None else body[comment.end() :]
            found.append(_Line("", same + item + body[: len(body) - len(text)], (text,), end))
            continue
        cells, last = [], 0
        for match in _BETWEEN.finditer(body):
            spaces = match[0].strip(" ") == ""
            alone = match[0] == "  " and begin.end() + match.end() not in aligned
            if not (spaces and (justified or alone)):
                cells += [body[last : match.start()], match[0]]
                last = match.end()
        found.append(_Line(same, item, (*cells, body[last:]), end))
    return found


def _goes_on(paragraph: Sequence[_Line], following: _Line, widest: int) -> bool:
    """True if a line break is one within a paragraph: the next word would not have fitted into the line."""
    line = paragraph[-1]
    text, body = line.cells[-1], following.body
    if following.item or len(following.cells) > 1 or widest < NARROWEST or not text or not body:
        return False
    hangs = len(line.cells) > 1 or line.item
    if len(paragraph) > 1:
        continues = following.same == line.same
    else:
        continues = _marks(following) == _marks(line)
        continues &= not hangs or width_of(following.same) == width_of(line.before_last)
    if not continues:
        return False
    word = _UNIT.match(body)
    needed = width_of(word[0]) if word else 1
    full = line.width + needed + (not _JOINED.match(body)) > widest
    return full or (body[0].islower() and line.width >= 0.7 * widest and text[-1] not in ".!?:;")


def _marks(line: _Line) -> str:
    return line.same.strip().replace("/**", "*").replace("/*", "*")


def _joined(lines: Sequence[str]) -> str:
    """The text of lines, with spaces between them where the script has them."""
    text = lines[0]
    for line in lines[1:]:
        text += ("" if _JOINED.match(line) and _JOINED.match(text[-1]) else " ") + line
    return text


def width_of(text: str) -> int:
    """The columns of a text."""
    if text.isascii():
        return len(text.expandtabs())
    wide = (unicodedata.east_asian_width(character) in "WF" for character in text)
    return sum(map(int, wide)) + sum(not unicodedata.combining(character) for character in text)


def wrapped(text: str, *, before: str, between: str, width: int) -> str:
    """A text in lines.

    Args:
        text: in one line.
        before: what stands before it, already.
        between: a line feed, and what stands before each further line.
        width: columns of a line.
    """
    lines, line, room = [], "", width - width_of(before)
    for space, word in _UNIT.findall(text):
        if line and width_of(line + space + word) > room:
            lines.append(line)
            line, room = word, width - width_of(between.lstrip("\r\n"))
        else:
            line += (space if line else "") + word
    return between.join([*lines, line])
