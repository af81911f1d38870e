"""Documents, translated: their segments with the alignments by which markup is put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from amlp_fairseq.text.documents import Document
from amlp_fairseq.text.inline import linked
from amlp_fairseq.text.subwords import text_of
from amlp_fairseq.translator.texts import Part, Translation


def put(document: Document, translations: Sequence[Translation], segmentation: str | None) -> str:
    """The translated document.

    Args:
        document: its source.
        translations: of the texts of its segments, with hard alignments where markup is to be put back by them.
        segmentation: of words into pieces, see ``text/subwords.py``.
    """
    return document.put(
        [
            segment.put(translation.text, links(segment.text, translation, segmentation) if segment.inlines else ())
            for segment, translation in zip(document.segments, translations, strict=True)
        ]
    )


def links(text: str, translation: Translation, segmentation: str | None) -> list[int | None]:
    """For each character of a translation that of the source with which it is aligned: the first of a piece.

    Args:
        text: the source.
        translation: of it.
        segmentation: see :func:`put`.
    """
    found: list[int | None] = [None] * len(translation.text)
    source_begin = target_begin = 0
    for part in translation.parts or [translation]:
        source_text = part.source if isinstance(part, Part) else text
        source = _found(text, source_text, source_begin)
        target = _found(translation.text, part.text, target_begin)
        source_begin, target_begin = source + len(source_text), target + len(part.text)
        if not part.alignment:
            found[target:target_begin] = [source + place for place in linked(source_text, part.text)]
            continue
        sources = _owners(source_text, part.source_pieces, segmentation)
        first = {piece: place for place, piece in reversed([*enumerate(sources)]) if piece is not None}
        aligned = {target: source + first[place] for place, target in part.alignment if place in first}
        for place, piece in enumerate(_owners(part.text, part.pieces, segmentation), target):
            found[place] = None if piece is None else aligned.get(piece)
    return found


def _found(text: str, part: str, begin: int) -> int:
    """Where a part of a text begins; where it began, if its spaces are others there."""
    place = text.find(part, begin)
    return begin if place < 0 else place


def _owners(text: str, pieces: Sequence[str], segmentation: str | None) -> list[int | None]:
    """For each character of a text the number of its piece; None for spaces, and what is not found."""
    owners = [
        (character, number)
        for number, piece in enumerate(pieces)
        for character in text_of(piece, segmentation)[0]
        if character != "\u2581"
    ]
    places = [place for place, character in enumerate(text) if not character.isspace()]
    found: list[int | None] = [None] * len(text)
    if len(owners) == len(places):
        pairs: Iterator[tuple[int, int]] = zip(range(len(places)), range(len(owners)), strict=True)
    else:  # a tokeniser wrote other characters
        characters, own = [text[place] for place in places], [character for character, _ in owners]
        blocks = SequenceMatcher(None, characters, own, autojunk=False).get_matching_blocks()
        pairs = ((one + index, other + index) for one, other, size in blocks for index in range(size))
    for place, owner in pairs:
        found[places[place]] = owners[owner][1]
    return found
