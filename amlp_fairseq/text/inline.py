"""Text with markup inside: what of it is translated, and where the markup stands in the translation.

A *segment* is a text without its markup, and the markup with its places. In the translation every element stands around
the words that are aligned with its own, once, and what is kept (an image, an address) between the words it stood
between: nothing is lost, added or crossed, whatever the alignment is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import regex

#: What no model translates: addresses of pages and of people, what programs put in the place of values, and flags.
KEEP = (
    r"\b(?:[a-z][a-z0-9+.-]+://|www\.)[^\s<>\"'“”«»]*[^\s<>\"'“”«».,;:!?)\]}…。，、！？]",
    r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    r"\$?\{\{?[^{}\s]*\}?\}|%(?:\(\w+\)|\d+\$)?[-+#0]?\d*(?:\.\d+)?(?:l{0,2}[diux]|[sfgeEgGcr@])\b|%\d+\b|\$[A-Za-z_]\w*",
    r"(?<![\w-])(?:--[A-Za-z][\w-]*(?:=[^\s,;)\]]+)?|-[A-Za-z]\b(?!-))",
)


class Token(NamedTuple):
    """A part of marked text.

    Attributes:
        kind: ``text``; ``open`` and ``close``, the ends of an element; ``void``, which stands for itself (an image);
            ``kept``, which stands for words (code, an address).
        raw: as it is in the source.
        text: the characters of a text.
        name: of an element, by which its ends find each other.
    """

    kind: Literal["text", "open", "close", "void", "kept"]
    raw: str
    text: str = ""
    name: str = ""


@dataclass(frozen=True)
class Inline:
    """An element around some characters of a segment, or what is kept at one place.

    Attributes:
        begin, end: of the characters; the same for what is kept.
        opening, closing: what is written before and after them.
        inside: elements and what is kept in between.
        before, after: the spaces around what is kept; None where the text begins or ends.
    """

    begin: int
    end: int
    opening: str
    closing: str = ""
    inside: tuple[Inline, ...] = ()
    before: str | None = ""
    after: str | None = ""

    @property
    def is_kept(self) -> bool:
        return self.begin == self.end


@dataclass(frozen=True)
class Segment:
    """A text to translate.

    Attributes:
        text: without markup.
        inlines: its markup, in order.
        escape: writes characters as the format has them.
        layout: breaks the written text into lines, if it stood on several.
    """

    text: str
    inlines: tuple[Inline, ...] = ()
    escape: Callable[[str], str] = str
    layout: Callable[[str], str] = str

    def put(self, translation: str, links: Sequence[int | None]) -> str:
        """The translation with the markup.

        Args:
            translation: of the text.
            links: for each of its characters that of the text it is aligned with, if any.
        """
        words = [*_words(translation, links, self)]
        found = _Placed(self, translation, words).level(self.inlines, 0, len(self.text), 0, len(words))
        return self.layout(found)


#: A part of a document: what stays, or what is translated.
Piece: TypeAlias = "str | Segment"


def has_words(text: str) -> bool:
    """True if there is something to translate."""
    return any(map(str.isalpha, text))


@cache
def keeper(patterns: tuple[str, ...]) -> regex.Pattern[str]:
    """What matches one of some patterns.

    Raises:
        ValueError: for a pattern that is none.
    """
    import regex

    for pattern in patterns:
        try:
            regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"--keep {pattern!r} is not a regular expression: {error}") from None
    return regex.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def pieces(
    tokens: Iterable[Token],
    keep: tuple[str, ...] = KEEP,
    escape: Callable[[str], str] = str,
    layout: Callable[[str], str] = str,
) -> Iterator[Piece]:
    """The pieces of marked text: a segment, with what stands around it; or as it is, where it has no words.

    Args:
        tokens: of the text.
        keep: regular expressions of what is not translated.
        escape, layout: see ``Segment``.
    """
    tokens = [*tokens]
    parts = [*_split(tokens, keep, escape)]
    if not any(part.kind == "text" and has_words(part.text) for part in parts):
        yield "".join(token.raw for token in tokens)
        return
    first, last = 0, len(parts)
    while True:
        while parts[first].kind == "void" or _is_space(parts[first]):
            first += 1
        while parts[last - 1].kind == "void" or _is_space(parts[last - 1]):
            last -= 1
        ends = _ends(parts[first:last])
        if ends.get(0) != last - first - 1:
            break
        first, last = first + 1, last - 1
    yield "".join(part.raw for part in parts[:first])
    found = _Builder(parts[first:last], ends)
    yield Segment(found.text, found.inlines, escape, layout)
    yield "".join(part.raw for part in parts[last:])


def _split(tokens: Iterable[Token], keep: tuple[str, ...], escape: Callable[[str], str]) -> Iterator[Token]:
    """The tokens, with each text cut into spaces, words, and what is kept. Neighbouring texts are joined first, so that
    what is kept is found across character references."""
    run: list[Token] = []
    for token in (*tokens, None):
        if token is not None and token.kind == "text":
            run.append(token)
            continue
        text = "".join(each.text for each in run)
        if text and not text.isspace():
            begin = 0
            for match in keeper(keep).finditer(text) if keep else ():
                if match[0].strip():
                    yield from _around_spaces(text[begin : match.start()], escape)
                    yield Token("kept", escape(match[0]))
                    begin = match.end()
            yield from _around_spaces(text[begin:], escape)
        elif run:
            yield Token("text", "".join(each.raw for each in run), text)
        run = []
        if token is not None:
            yield token


def _around_spaces(text: str, escape: Callable[[str], str]) -> Iterator[Token]:
    body = text.strip()
    begin = text.index(body) if body else len(text)
    for part in (text[:begin], body, text[begin + len(body) :]):
        if part:
            yield Token("text", escape(part), part)


def _is_space(token: Token) -> bool:
    return token.kind == "text" and token.text.isspace()


def _ends(tokens: Sequence[Token]) -> dict[int, int]:
    """From the number of the opening token of an element to that of its closing one, without those that are missing or
    would cross."""
    opened: list[int] = []
    found = {}
    for index, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(index)
        elif token.kind == "close":
            names = [tokens[each].name for each in opened]
            if token.name in names:
                place = len(names) - 1 - names[::-1].index(token.name)
                found[opened[place]] = index
                del opened[place:]
    return found


class _Builder:
    """Makes the text of a segment, and its inlines."""

    def __init__(self, tokens: Sequence[Token], ends: dict[int, int]) -> None:
        self.tokens, self.ends, self.text = tokens, ends, ""
        # what stands after the last character: spaces before and after what is kept
        self._before = self._after = self._kept = self._for_words = False
        self.inlines = (*self._level(0, len(tokens)),)

    def _level(self, begin: int, end: int) -> Iterator[Inline]:
        """The inlines of some tokens, whose text is added."""
        index = begin
        while index < end:
            stop = self.ends.get(index, index)
            if not self._is_kept(index):
                yield from self._words(index, stop)
                index = stop + 1
                continue
            first = index
            while index < end and (self._is_kept(index) or self._is_space_within(index, end)):
                index = self.ends.get(index, index) + 1
            raw = "".join(token.raw for token in self.tokens[first:index])
            self._kept = True
            self._for_words |= any(token.kind == "kept" for token in self.tokens[first:index])
            place, before = len(self.text), " " if self._before else ""
            self._after = index < end and _is_space(self.tokens[index])
            after = " " if self._after else ""
            last = index + self._after == len(self.tokens)
            yield Inline(place, place, raw, before=before if place else None, after=None if last else after)

    def _words(self, index: int, stop: int) -> Iterator[Inline]:
        """Add a text or an element with text."""
        token = self.tokens[index]
        if _is_space(token):
            if self._kept:
                self._after = True
            else:
                self._before = True
            return
        self._write_space(
            next(each.text for each in self.tokens[index:] if each.kind == "text" and not _is_space(each))
        )
        if token.kind == "text":
            self.text += " ".join(token.text.split())
            return
        begin = len(self.text)
        inside = (*self._level(index + 1, stop),)
        yield Inline(begin, len(self.text), token.raw, self.tokens[stop].raw, inside)

    def _write_space(self, following: str) -> None:
        """A space before text. What is kept leaves one where words would be joined, none before a mark."""
        words = following[0].isalnum() and self.text[-1:].isalnum()
        opening = not following[0].isalnum() or self.text[-1:] in _OPENING
        if not self._kept:
            space = self._before
        elif words or not opening:
            space = self._before or self._after or (words and self._for_words)
        else:
            space = self._before and self._after
        if self.text and space:
            self.text += " "
        self._before = self._after = self._kept = self._for_words = False

    def _is_kept(self, index: int) -> bool:
        """True for what stands for itself, and for an element without text."""
        if self.tokens[index].kind == "text":
            return False
        stop = self.ends.get(index)
        return stop is None or not any(
            token.kind == "text" and not _is_space(token) for token in self.tokens[index:stop]
        )

    def _is_space_within(self, index: int, end: int) -> bool:
        """True for a space between two things that are kept."""
        return _is_space(self.tokens[index]) and index + 1 < end and self._is_kept(index + 1)


#: After which there is no space.
_OPENING = frozenset("([{¿¡«„“‘\"'/-")


@dataclass(frozen=True)
class _Word:
    """A word or mark of a translation.

    Attributes:
        begin, end: of its characters.
        source: the character of the source that it is aligned with.
        is_mark: it has neither letters nor digits.
        is_cut: it is a part of a word that is as in the source.
    """

    begin: int
    end: int
    source: int | None
    is_mark: bool
    is_cut: bool = False


@cache
def _word_pattern() -> regex.Pattern[str]:
    import regex

    alone = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*"
    letters = (
        r"(?:(?![\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}])[\p{L}\p{M}\p{N}_])+"
    )
    return regex.compile(rf"{alone}|{letters}(?:['’.\-]{letters})*|\S")


def _words(text: str, links: Sequence[int | None], segment: Segment) -> Iterator[_Word]:
    """The words of a translation. One that is as in the source is cut where its markup cuts it there."""
    cuts = {place for inline in segment.inlines for place in _places(inline)}
    sources = [match.span() for match in _word_pattern().finditer(segment.text)] if cuts else []
    for match in _word_pattern().finditer(text):
        aligned = Counter(link for link in links[match.start() : match.end()] if link is not None)
        source = max(aligned, key=aligned.__getitem__) if aligned else None
        is_mark = not any(map(str.isalnum, match[0]))
        begin, end = next((each for each in sources if source is not None and each[0] <= source < each[1]), (0, 0))
        inside = [place for place in sorted(cuts) if begin < place < end]
        if inside and match[0].casefold() == segment.text[begin:end].casefold() and len(match[0]) == end - begin:
            for first, last in pairwise([begin, *inside, end]):
                shift = match.start() - begin
                yield _Word(first + shift, last + shift, first, is_mark, is_cut=True)
        else:
            yield _Word(match.start(), match.end(), source, is_mark)


def _places(inline: Inline) -> Iterator[int]:
    yield from (inline.begin, inline.end)
    for each in inline.inside:
        yield from _places(each)


@dataclass(frozen=True)
class _Placed:
    """Writes the translation of a segment with its markup."""

    segment: Segment
    translation: str
    words: Sequence[_Word]

    def level(self, inlines: Sequence[Inline], begin: int, end: int, low: int, high: int) -> str:
        """The words from ``low`` to ``high`` with the markup of the source's characters from ``begin`` to ``end``."""
        elements = [inline for inline in inlines if not inline.is_kept]
        spans = self._spans(elements, begin, end, low, high)
        things: dict[int, list[Inline]] = {}
        for inline in inlines:
            if inline.is_kept:
                place = self._outside(self._place(inline.begin, begin, end, low, high), inline, elements, spans)
                things.setdefault(place, []).append(inline)
        starting = {span[0]: index for index, span in enumerate(spans) if span[0] < span[1]}
        empty: dict[int, list[int]] = {}
        for index, (first, last) in enumerate(spans):
            if first == last:
                empty.setdefault(first, []).append(index)
        result, word = "", low
        while True:
            space = self._space(word) if low < word < high else ""
            for thing in things.get(word, ()):
                before, after = self._spaces(thing, space)
                result += (before if word > low else "") + thing.opening
                space = after if word < high else ""
            result += space
            for index in empty.get(word, ()):
                result += self._element(elements[index], word, word)
            if word >= high:
                return result
            if word in starting:
                index = starting[word]
                result += self._element(elements[index], *spans[index])
                word = spans[index][1]
            else:
                result += self.segment.escape(self.translation[self.words[word].begin : self.words[word].end])
                word += 1

    def _spaces(self, thing: Inline, space: str) -> tuple[str, str]:
        """The spaces around what is kept, in the place of a space."""
        apart = thing.before == "" == thing.after and not self.segment.text.startswith(" ", thing.begin)
        before, after = (space if apart else each for each in (thing.before, thing.after))
        return (space or " ") if before is None else before, (space or " ") if after is None else after

    def _space(self, word: int) -> str:
        """What stands before a word."""
        return self.segment.escape(self.translation[self.words[word - 1].end : self.words[word].begin])

    def _element(self, element: Inline, low: int, high: int) -> str:
        inside = self.level(element.inside, element.begin, element.end, low, high)
        return element.opening + inside + element.closing

    def _spans(self, elements: Sequence[Inline], begin: int, end: int, low: int, high: int) -> list[tuple[int, int]]:
        """The words of each element: the run in which most are aligned with its own, and fewest are not."""
        found: dict[int, tuple[int, int]] = {}
        owners = [self._owner(elements, self.words[word]) for word in range(low, high)]
        free = [True] * (high - low)
        for index, element in enumerate(elements):
            best, total, start = (0, 0, 0), 0, 0
            for place, owner in enumerate(owners):
                gain = 1 if owner == index else -1
                if not free[place] or (owner is not None and owner != index):
                    total, start = 0, place + 1
                    continue
                total += gain
                if total <= 0:
                    total, start = 0, place + 1
                elif total > best[0]:
                    best = total, start, place + 1
            if best[0] == 0:
                gap = self._place(element.begin, begin, end, low, high)
                nearest = self._nearest(free, owners, gap - low)
                if nearest is None:
                    continue
                best = 1, nearest, nearest + 1
            first, last = self._without_marks(element, low + best[1], low + best[2])
            free[first - low : last - low] = [False] * (last - first)
            found[index] = first, last
        filled, spans = [elements[index] for index in found], [*found.values()]
        for index in range(len(elements)):
            if index not in found:  # no word is left: it stands between the others
                gap = self._place(elements[index].begin, begin, end, low, high)
                found[index] = (self._outside(gap, elements[index], filled, spans),) * 2
        return [found[index] for index in range(len(elements))]

    def _without_marks(self, element: Inline, first: int, last: int) -> tuple[int, int]:
        """A run of words without marks at its ends, where the element has none: the dot after it."""
        while last - first > 1 and self.words[last - 1].is_mark and self.segment.text[element.end - 1].isalnum():
            last -= 1
        while last - first > 1 and self.words[first].is_mark and self.segment.text[element.begin].isalnum():
            first += 1
        return first, last

    def _owner(self, elements: Sequence[Inline], word: _Word) -> int | None:
        """The element of the source's word that one is aligned with, or of a part of it."""
        source = word.source
        if source is None:
            return None
        for index, element in enumerate(elements):
            rest = _word_pattern().match(self.segment.text, source)
            in_word = rest is not None and source < element.begin < rest.end() and not word.is_cut
            if in_word or element.begin <= source < element.end:
                return index
        return None

    @staticmethod
    def _nearest(free: Sequence[bool], owners: Sequence[int | None], place: int) -> int | None:
        """The nearest word that belongs to nobody."""
        found = [index for index, owner in enumerate(owners) if free[index] and owner is None]
        return min(found, key=lambda index: abs(index - place), default=None)

    def _place(self, source: int, begin: int, end: int, low: int, high: int) -> int:
        """The word before which something stands that stands before a character of the source."""
        text = self.segment.text
        if not text[begin:source].strip():
            return low
        rest = text[source:end]
        if not any(map(str.isalnum, rest)):
            place = high
            while place > max(low, high - len("".join(rest.split()))) and self.words[place - 1].is_mark:
                place -= 1
            return place
        linked = [
            (word.source, index) for index, word in enumerate(self.words[low:high], low) if word.source is not None
        ]
        after = [each for each in linked if source <= each[0] < end]
        if after:
            nearest = min(after)[0]
            return min(index for found, index in after if found == nearest)
        before = [each for each in linked if begin <= each[0] < source]
        if before:
            return max(before)[1] + 1
        return low + round((high - low) * (source - begin) / (end - begin))

    @staticmethod
    def _outside(place: int, inline: Inline, elements: Sequence[Inline], spans: Sequence[tuple[int, int]]) -> int:
        """A place that is not within an element beside: before it, or after it, as in the source."""
        for element, (first, last) in zip(elements, spans, strict=True):
            if first < place < last or (place in (first, last) and first < last):
                if inline.end <= element.begin and place <= last:
                    place = first if first < place else place
                elif inline.begin >= element.end and first <= place:
                    place = last if place < last else place
        return place


def linked(text: str, translation: str) -> list[int]:
    """Links in proportion, where no alignment is known."""
    return [len(text) * index // max(len(translation), 1) for index in range(len(translation))]
