"""HTML as pieces of a document: text is translated, markup stays as it is."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from itertools import accumulate

from amlp_fairseq.text.inline import Piece, Token, pieces

#: Elements within a sentence. All others end one.
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark meter output picture "
    "progress q rp rt ruby s samp small span strike strong sub sup svg math time tt u var wbr".split()
)
#: Elements of which nothing is translated; those within a sentence are kept there.
KEPT = frozenset("code kbd samp script style svg math template textarea var".split())
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())


#: What stands between two texts of one line in ``pre``, with the spaces at a line's ends.
_APART = re.compile(r"(\s*\n\s*|[ \t]{2,}|\t)")


def read(text: str, keep: tuple[str, ...]) -> Iterator[Piece]:
    """The pieces of a page, or of a part of one.

    Args:
        text: the source.
        keep: see ``inline.pieces``.
    """
    tokens: list[Token] = []
    for token in _preformatted(_kept_elements(_Events(text).tokens)):
        if token.kind == "text" or token.name in INLINE:
            tokens.append(token)
            continue
        yield from pieces(tokens, keep, _escaped)
        tokens = []
        yield token.raw
    yield from pieces(tokens, keep, _escaped)


def _kept_elements(tokens: Iterable[Token]) -> Iterator[Token]:
    """Tokens, with one for each element that is kept."""
    raw, name, depth = "", "", 0
    for token in tokens:
        if depth:
            raw += token.raw
            if token.name == name:
                depth += {"open": 1, "kept": 1, "close": -1}.get(token.kind, 0)
            if not depth:
                yield Token("kept", raw, "", name)
        elif token.kind == "kept":
            raw, name, depth = token.raw, token.name, 1
        else:
            yield token
    if depth:
        yield Token("kept", raw, "", name)


def _preformatted(tokens: Iterable[Token]) -> Iterator[Token]:
    """Tokens, in which the lines and columns of preformatted text stand apart."""
    depth = 0
    for token in tokens:
        if token.name == "pre":
            depth = max(depth + {"open": 1, "close": -1}.get(token.kind, 0), 0)
        if depth and token.kind == "text" and token.raw.strip():
            for index, part in enumerate(_APART.split(token.raw)):
                if part:
                    yield Token("void", part) if index % 2 else Token("text", part, html.unescape(part))
        else:
            yield token


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


class _Events(HTMLParser):
    """The tokens of a page. They are cut where the parser finds something, so that joined they are the page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self._found = [(0, Token("void", "", "", "wbr"))]
        cut = re.compile(r"<[A-Za-z/!?]|\Z").search(text, text.rfind(">") + 1)
        end = len(text) if cut is None else cut.start()
        self.feed(text[:end])
        self.close()
        self._found += [(end, Token("void", ""))] * (end < len(text))  # a tag that does not end
        ends = [*(place for place, _ in self._found[1:]), len(text)]
        self.tokens = [
            token._replace(raw=text[begin:end], text=html.unescape(text[begin:end]) if token.kind == "text" else "")
            for (begin, token), end in zip(self._found, ends, strict=True)
        ]

    def _add(self, token: Token) -> None:
        line, column = self.getpos()
        self._found.append((self._lines[line - 1] + column, token))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = ("translate", "no") in attrs or tag in KEPT
        self._add(Token("void" if tag in VOID else "kept" if kept else "open", "", "", tag))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add(Token("void", "", "", tag))

    def handle_endtag(self, tag: str) -> None:
        self._add(Token("close", "", "", tag))

    def handle_data(self, data: str) -> None:
        self._add(Token("text", ""))

    def handle_entityref(self, name: str) -> None:
        self._add(Token("text", ""))

    def handle_charref(self, name: str) -> None:
        self._add(Token("text", ""))

    def _add_verbatim(self, data: str) -> None:
        self._add(Token("void", "", "", "wbr"))

    def handle_comment(self, data: str) -> None:
        self._add_verbatim(data)

    def handle_decl(self, decl: str) -> None:
        self._add_verbatim(decl)

    def handle_pi(self, data: str) -> None:
        self._add_verbatim(data)

    def unknown_decl(self, data: str) -> None:
        self._add_verbatim(data)
