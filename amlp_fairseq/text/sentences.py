"""The sentences of a text, of which nothing is lost, and the parts of what is longer than a model can read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import regex

from amlp_fairseq.text.languages import language

#: What may be done with an input that is longer than a model can read.
LONG = ("split", "truncate", "refuse")


class TooLong(ValueError):
    """An input is longer than the model can read; ``number`` says which, from 1."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def split(text: str, code: str) -> Iterator[tuple[str, str]]:
    """The sentences of a text, each with the white space after it; joined, they are the text. A line feed ends a
    sentence, too. What stands before the first word of a line comes with an empty sentence.

    Args:
        text: any text.
        code: of its language, see ``languages.py``. For one that sentencex does not know, English rules hold.

    Raises:
        ValueError: where sentencex is not installed.
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
    """Cut a text into parts that fit, each with the white space after it: as many words as fit, and of a word that does
    not fit by itself (an address, or text of a language without spaces) as many characters. Joined, they are the text.

    Args:
        text: any text, without white space at its ends.
        code: of its language.
        fits: True for a part that is short enough.
        at_sentences: cut between sentences where that is possible.

    Raises:
        ValueError: if a single character does not fit.
    """
    kinds = [_words, _characters]
    if at_sentences:
        kinds.insert(0, lambda text: ["".join(each) for each in split(text, code)])
    for part in _cut(text, kinds, fits):
        body = part.rstrip()
        yield body, part[len(body) :]


_SPACES, _NO_SPACES, _LETTER = re.compile(r"\s*"), re.compile(r"\S*"), re.compile(r"\w")
#: Stops that end a sentence wherever they stand: Chinese and Japanese, Indic, Arabic, Ethiopic, Khmer, Burmese ones.
_WIDE = "。｡！？﹖﹗।॥؟۔።፧។៕။"
#: Ends that sentencex may not find: those, and an ellipsis before a capital letter.
_FURTHER = regex.compile(rf"[{_WIDE}]+|…(?=[\"'”’»)]*\s+[\"'“‘«(¿¡]*\p{{Lu}})")
#: Between a pair of these sentencex finds no end. Marks like [1] and apostrophes are no pairs.
_PAIRED = re.compile(r"(\[\w{1,3}\]|\b['’]\b)|[\"'“”„‟‘’‚‛«»‹›「」『』()（）\[\]]")
#: What belongs to the sentence after its stop: marks, and what closes a quotation or bracket. French has a space before
#: », German closes with “ and «, which elsewhere open.
_CLOSING = re.compile(r"(?:[\"'“”‘’»«›‹)\]}]|\[\w{1,3}\])+|[ \u00a0\u202f]»(?!\w)")
_CLOSING_WIDE = re.compile(r"[”’」』）】》〉〗)\]]+")
#: The sentence goes on with these; the words are Japanese, after a quotation.
_GOES_ON = re.compile(r"[,;、，；)]|(?:と|って)")
#: Words with a stop but no space between them, and no address or name of a file.
_NO_SPACE = regex.compile(r"\p{P}*(?:\p{L}{2,}[.!?]+)(?:\p{Lu}\p{Ll}+[.!?]+)*\p{Lu}\p{Ll}*\p{P}*")
#: Abbreviations with which no sentence ends, and that sentencex lacks for some of its languages.
_ABBREVIATIONS = frozenset(
    "approx dhr dr dra drs hr ing inż jhr mevr mgr mlle mme mr mrs ms mw nr núm pág prof sra st стр ул डॉ डा ডা".split()
)
#: Those that a number follows.
_BEFORE_NUMBERS = frozenset("abb art bd cap ch chap eq eqs fig figs kap no nos p pag pp sec tab vol".split())
_OF_LANGUAGE = {"de": ("S", "bzw"), "fr": ("M", "MM"), "pl": ("Np", "np", "m.in", "tzn", "tzw")}
#: An ordinal number in German, whose nouns have capital letters.
_ORDINAL = re.compile(r"\b(?:im|am|vom|zum|beim|der|die|das|den|dem|des|dieser?|dieses|jede[mnrs]?)\s\d{1,3}\.$", re.I)
#: The number or letter of an item.
_ITEM = re.compile(r"\W*(?:\d{1,3}|[^\W\d_])[.)]")


def _ends(line: str, code: str) -> Iterator[int]:
    """Where the sentences of a line end, the last one at its end."""
    try:
        import sentencex  # here, because machines without a network may lack it: no checkpoint needs it
    except ModuleNotFoundError:
        raise ValueError("sentencex, which finds sentences, is not installed: give --no-split-sentences") from None
    hidden = {match.start() for match in _PAIRED.finditer(line) if not match[1]}
    shown = [place for place in range(len(line)) if place not in hidden]
    stops = {match.end() for match in _FURTHER.finditer(line)}
    place = 0
    for segment in sentencex.segment(code, "".join(line[each] for each in shown)):
        if words := segment.rstrip():
            stops.add(shown[place + len(words) - 1] + 1)
        place += len(segment)
    begin = 0
    for stop in sorted(stops):
        end = _with_closing(line, begin, stop)
        if end > begin and _is_end(line, begin, stop, end, code):
            yield end
            begin = end
    yield len(line)


def _with_closing(line: str, begin: int, stop: int) -> int:
    """The end of a sentence, after what closes its quotations and brackets."""
    if line[stop - 1] not in _WIDE:
        found = _CLOSING.match(line, stop)
        return found.end() if found else stop
    if line[stop : stop + 1] == '"' and line.count('"', begin, stop) % 2:
        return stop + 1
    found = _CLOSING_WIDE.match(line, stop)
    return found.end() if found else stop


def _is_end(line: str, begin: int, stop: int, end: int, code: str) -> bool:
    """False for a stop, with what closes after it, that does not end the sentence which begins at ``begin``."""
    after = _SPACES.match(line, end).end()  # type: ignore[union-attr]
    sentence, mark, following = line[begin:stop], line[stop - 1], line[after : after + 1]
    if not _LETTER.search(sentence) or not _LETTER.search(line, after) or _ITEM.fullmatch(sentence):
        return False
    if goes_on := _GOES_ON.match(line, after):
        return goes_on[0] in ("と", "って") and end == stop
    if end > stop and following.islower():  # "Really?" he asked.
        return False
    if sentence[-2:-1].isdigit() and mark in ".．" and (following.islower() or (after == end and following.isdigit())):
        return False
    word = sentence.split()[-1]
    if mark in ".!?…" and after == end:
        return end > stop or bool(_NO_SPACE.fullmatch(word + _NO_SPACES.match(line, end)[0]))  # type: ignore[index]
    if mark != "." or end > stop:
        return True
    word = word[:-1].lstrip("\"'“„‘«([")
    if word.lower() in _ABBREVIATIONS or word in _OF_LANGUAGE.get(code, ()):
        return False
    if following.isdigit() and word.lower() in _BEFORE_NUMBERS:
        return False
    return code != "de" or not _ORDINAL.search(sentence)


def _words(text: str) -> list[str]:
    """Words with the spaces after them; text without spaces is parted after its commas."""
    return re.findall(r"\S+?[、，；：]+\s*|\S+\s*|\s+", text)


def _characters(text: str) -> list[str]:
    """What a reader takes for a character: letters with their accents and vowel signs."""
    return regex.findall(r"\X", text)


def _cut(text: str, kinds: Sequence[Callable[[str], list[str]]], fits: Callable[[str], bool]) -> Iterator[str]:
    """The parts of a text: as many units of the first kind as fit together, and units that do not fit by themselves cut
    into those of the next kind, of which the rest goes together with the units that follow."""
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
    """The end of the most units from ``start`` on that fit together. Their number is doubled, then bisected: a part is
    short where the text is long. So only short parts are joined."""
    low, high = 0, 1
    most = len(units) - start
    while high < most and fits("".join(units[start : start + high])):
        low, high = high, min(2 * high, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits("".join(units[start : start + middle])) else (low, middle - 1)
    return start + low
