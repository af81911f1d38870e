"""Splits a text into sentences, and sentences that are too long for a model into parts, without losing anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from amlp_fairseq.text.languages import language

if TYPE_CHECKING:
    import regex

#: Treatments of inputs that are too long for a model.
LONG = ("split", "truncate", "refuse")


class TooLong(ValueError):
    """An input is too long for the model.

    Attributes:
        number: number of the input, from 1.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def split(text: str, code: str) -> Iterator[tuple[str, str]]:
    """The sentences of a text, each with the white space after it; joined, they are the text. A line feed ends a
    sentence, too. White space before the first word of a line comes with an empty sentence.

    Args:
        text: any text.
        code: the text's language, see ``languages.py``. English rules hold for languages unknown to sentencex.

    Raises:
        ValueError: if sentencex is not installed.
    """
    short = language(code).code
    for line in re.split(r"(?<=\n)", text):
        begin = _SPACES.match(line).end()  # type: ignore[union-attr]
        if begin:
            yield "", line[:begin]
        for end in _ends(line, short) if begin < len(line) else ():
            sentence = line[begin:end].rstrip()
            following = _SPACES.match(line, end).end()  # type: ignore[union-attr]
            yield sentence, line[begin + len(sentence) : following]
            begin = following


def cut(text: str, code: str, fits: Callable[[str], bool], *, at_sentences: bool) -> Iterator[tuple[str, str]]:
    """Cut a text into parts that fit, each with the white space after it: as many words as fit, or as many characters
    of a word that is too long (an address, or text of a language without spaces). Joined, they are the text.

    Args:
        text: any text, without white space at its ends.
        code: the text's language.
        fits: True for a part that is short enough.
        at_sentences: cut between sentences where possible.

    Raises:
        ValueError: if a single character does not fit.
    """
    kinds = [_words, _characters]
    if at_sentences:
        kinds.insert(0, lambda text: ["".join(sentence) for sentence in split(text, code)])
    for part in _cut(text, kinds, fits):
        body = part.rstrip()
        yield body, part[len(body) :]


_SPACES, _NO_SPACES, _LETTER = re.compile(r"\s*"), re.compile(r"\S*"), re.compile(r"\w")
#: Stops that always end a sentence: Chinese and Japanese, Indic, Arabic, Ethiopic, Khmer, Burmese.
_WIDE = "。｡！？﹖﹗।॥؟۔።፧។៕။"
#: Ends that sentencex may miss: these stops, and an ellipsis before a capital letter.
_FURTHER = rf"[{_WIDE}]+|…(?=[\"'”’»)]*\s+[\"'“‘«(¿¡]*\p{{Lu}})"
#: Pairs between which sentencex finds no end. Group 1, marks like [1] and apostrophes, are not pairs.
_PAIRED = re.compile(r"(\[\w{1,3}\]|\b['’]\b)|[\"'“”„‟‘’‚‛«»‹›「」『』()（）\[\]]")
#: Marks, and closing quotation marks and brackets, which belong to the sentence after its stop. French has a space
#: before », German closes with “ and «, which open elsewhere.
_CLOSING = re.compile(r"(?:[\"'“”‘’»«›‹)\]}]|\[\w{1,3}\])+|[ \u00a0\u202f]»(?!\w)")
_CLOSING_WIDE = re.compile(r"[”’」』）】》〉〗)\]]+")
#: Continuations of a sentence; the words are Japanese, after a quotation.
_CONTINUES = re.compile(r"[,;、，；)]|(?:と|って)")
#: Words with a stop but no space between them, other than addresses and file names.
_NO_SPACE = r"\p{P}*(?:\p{L}{2,}[.!?]+)(?:\p{Lu}\p{Ll}+[.!?]+)*\p{Lu}\p{Ll}*\p{P}*"
#: Abbreviations that do not end a sentence, missing in sentencex for some of its languages.
_ABBREVIATIONS = frozenset(
    "approx dhr dr dra drs hr ing inż jhr mevr mgr mlle mme mr mrs ms mw nr núm pág prof sra st стр ул डॉ डा ডা".split()
)
#: Abbreviations before a number.
_BEFORE_NUMBERS = frozenset("abb art bd cap ch chap eq eqs fig figs kap no nos p pag pp sec tab vol".split())
_OF_LANGUAGE = {"de": ("S", "bzw"), "fr": ("M", "MM"), "pl": ("Np", "np", "m.in", "tzn", "tzw")}
#: An ordinal number in German, whose nouns have capital letters.
_ORDINAL = re.compile(r"\b(?:im|am|vom|zum|beim|der|die|das|den|dem|des|dieser?|dieses|jede[mnrs]?)\s\d{1,3}\.$", re.I)
#: The number or letter of an item.
_ITEM = re.compile(r"\W*(?:\d{1,3}|[^\W\d_])[.)]")


@cache
def _with_properties(pattern: str) -> regex.Pattern[str]:
    """A pattern with what ``re`` has not: properties of characters, and grapheme clusters."""
    import regex  # takes 15 ms, and many a translation needs none

    return regex.compile(pattern)


def _ends(line: str, code: str) -> Iterator[int]:
    """The positions after the sentences of a line; the last one is the line's length."""
    try:
        import sentencex  # here, because machines without a network may lack it: no checkpoint needs it
    except ModuleNotFoundError:
        raise ValueError("sentencex, which finds sentences, is not installed: give --no-split-sentences") from None
    hidden = {match.start() for match in _PAIRED.finditer(line) if not match[1]}
    shown = [position for position in range(len(line)) if position not in hidden]
    stops = {match.end() for match in _with_properties(_FURTHER).finditer(line)}
    start = 0
    for segment in sentencex.segment(code, "".join(line[position] for position in shown)):
        if words := segment.rstrip():
            stops.add(shown[start + len(words) - 1] + 1)
        start += len(segment)
    begin = 0
    for stop in sorted(stops):
        end = _with_closing(line, begin, stop)
        if end > begin and _is_end(line, begin, stop, end, code):
            yield end
            begin = end
    yield len(line)


def _with_closing(line: str, begin: int, stop: int) -> int:
    """The end of a sentence, after its closing quotation marks and brackets."""
    if line[stop - 1] not in _WIDE:
        closing = _CLOSING.match(line, stop)
        return closing.end() if closing else stop
    if line[stop : stop + 1] == '"' and line.count('"', begin, stop) % 2:
        return stop + 1
    closing = _CLOSING_WIDE.match(line, stop)
    return closing.end() if closing else stop


def _is_end(line: str, begin: int, stop: int, end: int, code: str) -> bool:
    """True if the stop that ends at ``stop``, with closing marks up to ``end``, ends the sentence from ``begin`` on."""
    after = _SPACES.match(line, end).end()  # type: ignore[union-attr]
    sentence, mark, following = line[begin:stop], line[stop - 1], line[after : after + 1]
    if not _LETTER.search(sentence) or not _LETTER.search(line, after) or _ITEM.fullmatch(sentence):
        return False
    if continues := _CONTINUES.match(line, after):
        return continues[0] in ("と", "って") and end == stop
    if end > stop and following.islower():  # "Really?" he asked.
        return False
    if sentence[-2:-1].isdigit() and mark in ".．" and (following.islower() or (after == end and following.isdigit())):
        return False
    word = sentence.split()[-1]
    if mark in ".!?…" and after == end:
        return end > stop or bool(_with_properties(_NO_SPACE).fullmatch(word + _NO_SPACES.match(line, end)[0]))  # type: ignore[index]
    if mark != "." or end > stop:
        return True
    word = word[:-1].lstrip("\"'“„‘«([")
    if word.lower() in _ABBREVIATIONS or word in _OF_LANGUAGE.get(code, ()):
        return False
    if following.isdigit() and word.lower() in _BEFORE_NUMBERS:
        return False
    return code != "de" or not _ORDINAL.search(sentence)


def _words(text: str) -> list[str]:
    """Words with the spaces after them; text without spaces is split after its commas."""
    return re.findall(r"\S+?[、，；：]+\s*|\S+\s*|\s+", text)


def _characters(text: str) -> list[str]:
    """Characters as readers see them (grapheme clusters): letters with their accents and vowel signs."""
    return _with_properties(r"\X").findall(text)


def _cut(text: str, kinds: Sequence[Callable[[str], list[str]]], fits: Callable[[str], bool]) -> Iterator[str]:
    """The parts of a text: as many units of the first kind as fit together. A unit that does not fit is cut into units
    of the next kind, and its last piece is joined with the units after it."""
    if not kinds:
        raise ValueError(f"the character {text.strip()!r} alone is too long: a larger --max-length")
    units, start = kinds[0](text), 0
    while start < len(units):
        end = _longest(units, start, fits)
        if end == start:
            *parts, units[start] = _cut(units[start], kinds[1:], fits)
            yield from parts
            continue
        yield "".join(units[start:end])
        start = end


def _longest(units: Sequence[str], start: int, fits: Callable[[str], bool]) -> int:
    """Largest ``end`` such that ``units[start:end]`` fits. Doubles, then bisects, so only short slices are joined."""
    low, high = 0, 1
    limit = len(units) - start
    while high < limit and fits("".join(units[start : start + high])):
        low, high = high, min(2 * high, limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits("".join(units[start : start + middle])) else (low, middle - 1)
    return start + low
