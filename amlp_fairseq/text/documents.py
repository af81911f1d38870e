"""Documents: texts with a form, of which the texts are translated and the form stays.

A reader of a format gives the pieces of a document: strings that stay, and segments (``inline.py``), in order. Joined,
they are the document; with the translation of each segment in its place they are the translated document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amlp_fairseq.text import html, plain
from amlp_fairseq.text.inline import KEEP, Piece, Segment

#: Readers of formats: of a document's text and what is kept in it.
FORMATS: dict[str, Callable[[str, tuple[str, ...]], Iterator[Piece]]] = {"text": plain.read, "html": html.read}


@dataclass(frozen=True)
class Document:
    """A document in pieces."""

    pieces: tuple[Piece, ...]

    @classmethod
    def read(cls, text: str, format: str, keep: Sequence[str] = KEEP) -> Document:
        """Read a document.

        Args:
            text: the whole of it.
            format: one of ``FORMATS``.
            keep: regular expressions of what is not translated.

        Raises:
            ValueError: for another format, and a text that is not of it.
        """
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: choose one of {', '.join(FORMATS)}")
        return cls(tuple(piece for piece in FORMATS[format](text, tuple(keep)) if piece))

    @classmethod
    def stream(cls, lines: Iterable[str], format: str, keep: Sequence[str] = KEEP) -> Iterator[Document]:
        """The same in parts, which together are the document: of plain text its blocks."""
        if format == "text":
            for block in plain.blocks(lines):
                yield cls(tuple(piece for piece in plain.read_block(block, tuple(keep)) if piece))
        else:
            yield cls.read("".join(lines), format, keep)

    @cached_property
    def segments(self) -> list[Segment]:
        """What is translated, in order."""
        return [piece for piece in self.pieces if isinstance(piece, Segment)]

    def put(self, written: Sequence[str]) -> str:
        """The document with another text, as the format has it, in the place of each segment."""
        texts = iter(written)
        return "".join(piece if isinstance(piece, str) else next(texts) for piece in self.pieces)
