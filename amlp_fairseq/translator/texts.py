"""Cuts a text up into what is translated by itself, and joins the translations."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter

from amlp_fairseq.text import sentences
from amlp_fairseq.text.languages import writes_spaces
from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.translator.backend import Found
from amlp_fairseq.translator.given import Given


@dataclass(frozen=True)
class Part:
    """A sentence of a text, or a part of one that is too long: what was translated by itself.

    Attributes:
        source: its text.
        cut: True if the sentence goes on after it.

    The others are those of :class:`Translation`.
    """

    source: str
    text: str
    score: float = 0.0
    calls: int = 0
    alternatives: tuple[tuple[str, float], ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()
    source_pieces: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class Translation:
    """The translation of a text.

    Attributes:
        text: the translation.
        score: what it was chosen by: the log-probability divided by the length penalty, in nats (fairseq-generate has
            bits); the mean over parts; 0 for an empty text.
        calls: decoder calls, summed over parts.
        alternatives: further texts with their scores, best first (``nbest``); of several parts the best combinations of
            what was found for each.
        alignment: pairs of a source and a target piece, counted from 0 over all parts (``print_alignment="hard"``).
        attention: of each piece to each source piece, over all parts (``print_alignment="soft"``).
        source_pieces, pieces: what the model read and wrote, part after part.
        cuts: places where a sentence was cut, because it is too long for the model.
        parts: what was translated by itself, in order; empty where that is the whole text.
    """

    text: str
    score: float = 0.0
    calls: int = 0
    alternatives: tuple[tuple[str, float], ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()
    source_pieces: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    cuts: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Partial:
    """A translation of which some words are written.

    Attributes:
        before: the text before the sentence that is being written.
        parts: of that sentence, between which words are missing. The first one begins it and may be empty, as may the
            last one, which ends it. One part: all words are written, though some may still be replaced.
        translation: the translation of the whole text; None until it is complete, and then the only part is its text.
    """

    before: str
    parts: tuple[str, ...]
    translation: Translation | None = None

    @property
    def text(self) -> str:
        """The text so far, with an ellipsis where words are missing."""
        return self.before + " \u2026 ".join(self.parts).strip()


@dataclass(frozen=True)
class Source:
    """A part of a text, with the white space after it; it has no pieces where there is nothing to translate."""

    text: str
    pieces: str
    space: str
    cut: bool = False


class EmptyText(ValueError):
    """A text is empty, what its translation must begin or end with is not.

    Attributes:
        number: of the text, from 1.
        given: words.
    """

    def __init__(self, unit: str, number: int, given: str) -> None:
        super().__init__(f"{unit} {number} is empty, its --target-prefix or --target-suffix is not: {given!r}")
        self.number, self.given = number, given


#: Stands for a translation that is not there yet.
_NEXT = "\0"


@dataclass(frozen=True)
class Texts:
    """Texts of one pair of languages, and their translations.

    Attributes:
        pipeline: to the pieces of the model, and back.
        split_sentences, long, max_length: see ``Translator``.
    """

    pipeline: TextPipeline
    split_sentences: bool
    long: str
    max_length: int

    def parts(self, line: str, number: int) -> Iterator[Source]:
        """Parts of a text that are translated one by one: sentences, and parts of sentences that are too long."""
        check_text(line, number)
        whole = [(" ".join(line.split()), "")]
        for text, space in sentences.split(line, self.pipeline.languages[0]) if self.split_sentences else whole:
            pieces = self.pipeline.encode(text)
            count = len(pieces.split())
            if count <= self.max_length:
                yield Source(text, pieces, space)
                continue
            if self.long == "refuse":
                most = f"at most {self.max_length} are allowed: --long split, or a larger --max-length"
                raise sentences.TooLong(number, f"{count} pieces, {most}")
            yield from self._cut(text, space, number)

    def _cut(self, text: str, space: str, number: int) -> Iterator[Source]:
        def fits(part: str) -> bool:
            return len(self.pipeline.encode(part).split()) <= self.max_length

        whole_sentences = self.long == "split" and not self.split_sentences
        parts = sentences.cut(text, self.pipeline.languages[0], fits, at_sentences=whole_sentences)
        try:
            part, following = next(parts)
            if self.long == "split":
                for another, space_after in parts:
                    yield Source(part, self.pipeline.encode(part), following, cut=True)
                    part, following = another, space_after
            yield Source(part, self.pipeline.encode(part), space, cut=self.long == "truncate")
        except ValueError as error:
            raise sentences.TooLong(number, str(error)) from None

    def joined(self, line: list[tuple[Source, Part | None]], nbest: int) -> Translation:
        """The translation of a text from those of its parts."""
        parts = [part for _, part in line if part is not None]
        spaces = [source.space for source, _ in line]

        def text(parts_of_text: Iterator[str]) -> str:
            return self._text([next(parts_of_text) if part else "" for _, part in line], spaces)

        result = Translation(text(iter([part.text for part in parts])))
        if not parts:
            return result
        found = _best_combinations([[(part.text, part.score), *part.alternatives] for part in parts], nbest)
        sources = accumulate((len(part.source_pieces) for part in parts), initial=0)
        targets = accumulate((len(part.pieces) for part in parts), initial=0)
        return replace(
            result,
            score=sum(part.score for part in parts) / len(parts),
            calls=sum(part.calls for part in parts),
            alternatives=tuple((text(iter(texts)), score / len(parts)) for texts, score in found),
            alignment=tuple(
                (source + first, target + second)
                for part, first, second in zip(parts, sources, targets, strict=False)
                for source, target in part.alignment
            ),
            attention=_beside([part.attention for part in parts], [len(part.source_pieces) for part in parts]),
            source_pieces=tuple(piece for part in parts for piece in part.source_pieces),
            pieces=tuple(piece for part in parts for piece in part.pieces),
            cuts=sum(part.cut for part in parts),
            parts=tuple(parts) if len(parts) > 1 else (),
        )

    def _text(self, texts: Sequence[str], spaces: Sequence[str]) -> str:
        """Translations of parts as one text. Between them stand the line feeds of the source, with the spaces around
        them, or what the target language writes; nothing where a word was cut."""
        result, between = "", ""
        for text, space in zip(texts, spaces, strict=True):
            if text:
                result, between = result + between + text, ""
            if "\n" in space:
                result, between = result + space, ""
            elif text:
                in_word = not space and writes_spaces(self.pipeline.languages[0])
                between = "" if in_word or not writes_spaces(self.pipeline.languages[1]) else " "
        return result

    def before(self, line: list[Source], done: list[Part | None]) -> str:
        """The translations of the first parts of a text, with what stands between them and that of the next one."""
        texts = [*(part.text if part else "" for part in done), _NEXT]
        return self._text(texts, [source.space for source in line[: len(texts)]]).partition(_NEXT)[0]

    def given(
        self, sources: list[list[Source]], prefixes: Sequence[str] | None, suffixes: Sequence[str] | None
    ) -> list[Given]:
        """The given words of each part's translation; empty if there are none."""
        if prefixes is None and suffixes is None:
            return []
        result: list[Given] = []
        begins, ends = (_of_texts(texts, len(sources)) for texts in (prefixes, suffixes))
        for number, (line, begin, end) in enumerate(zip(sources, begins, ends, strict=True), 1):
            parts = sum(bool(part.pieces) for part in line)
            if not parts and (begin.strip() or end.strip()):
                raise EmptyText("text", number, begin.strip() or end.strip())
            result += self._given_of_text(parts, begin, end)
        return result

    def _given_of_text(self, parts: int, begin: str, end: str) -> Iterator[Given]:
        """The sentences before the last that is given are whole."""
        split = sentences.split(begin, self.pipeline.languages[1]) if parts > 1 else [(begin, "")]
        found = [sentence for sentence, _ in split if sentence.strip()]
        found[parts - 1 :] = [" ".join(found[parts - 1 :])] if len(found) >= parts else []
        for index in range(parts):
            first = found[index] if index < len(found) else ""
            yield Given(
                first=tuple(self.pipeline.encode(first, side=1).split()),
                last=tuple(self.pipeline.encode(end, side=1).split()) if index == parts - 1 else (),
                goes_on=index == len(found) - 1 and not begin[-1].isspace(),
                is_whole=index < len(found) - 1,
            )

    def part(self, source: Source, found: Sequence[Found]) -> Part:
        best = found[0]
        return Part(
            source=source.text,
            text=self.pipeline.decode(best.pieces),
            score=best.score,
            calls=best.calls,
            alternatives=tuple((self.pipeline.decode(each.pieces), each.score) for each in found[1:]),
            alignment=best.alignment,
            attention=best.attention,
            source_pieces=tuple(source.pieces.split()),
            pieces=tuple(best.pieces.split()),
            cut=source.cut,
        )


def _beside(attention: Sequence[tuple[tuple[float, ...], ...]], widths: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """The attention of parts as that of the whole: to no word of other parts."""
    before, total = accumulate(widths, initial=0), sum(widths)
    return tuple(
        (*[0.0] * first, *row, *[0.0] * (total - first - width))
        for first, width, part in zip(before, widths, attention, strict=False)
        for row in part
    )


def _of_texts(texts: Sequence[str] | None, count: int) -> Sequence[str]:
    if texts is not None and (isinstance(texts, str) or not isinstance(texts, Sequence)):
        raise TypeError("a prefix for each text is needed, in a list")
    if texts is None:
        return [""] * count
    if len(texts) != count:
        raise ValueError(f"there are {count} texts, and {len(texts)} prefixes or suffixes")
    for number, text in enumerate(texts, 1):
        check_text(text, number)
    return texts


def check_text(line: str, number: int) -> None:
    if not isinstance(line, str):
        raise TypeError(f"text {number} is of type {type(line).__name__}: a string is needed")
    try:
        line.encode()
    except UnicodeEncodeError as error:
        found = f"{line[error.start]!r} at character {error.start}"
        raise ValueError(f"text {number} has half a surrogate pair, {found}: it is not text") from None


def _best_combinations(found: Sequence[Sequence[tuple[str, float]]], count: int) -> list[tuple[tuple[str, ...], float]]:
    """After the best one, the best combinations of what was found for each part, with the sums of their scores.

    Args:
        found: for each part texts with their scores, best first.
        count: of combinations, with the best one.
    """
    best: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for part in found if count > 1 else ():
        longer = (((*ranks, rank), total + score) for ranks, total in best for rank, (_, score) in enumerate(part))
        best = heapq.nlargest(count, longer, key=itemgetter(1))
    others = [(ranks, total) for ranks, total in best if any(ranks)][: count - 1]
    return [(tuple(part[rank][0] for part, rank in zip(found, ranks, strict=True)), total) for ranks, total in others]
