"""Texts are cut up at the ends of sentences, and nothing of them is lost."""

import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amlp_fairseq.translator import long_inputs


def at_most(words: int) -> Callable[[str], bool]:
    return lambda text: len(text.split()) <= words


def test_sentences() -> None:
    text = "Dr. Smith went home. He was tired!  Was he?"
    parts = list(long_inputs.split(text, "en", at_most(4)))
    assert parts == [("Dr. Smith went home.", " "), ("He was tired!", " "), ("Was he?", "")]


def test_sentences_with_references() -> None:
    parts = list(long_inputs.split("He came home.[1] Then he left.[2] Why?", "en", at_most(3)))
    assert parts == [("He came home.[1]", " "), ("Then he left.[2]", " "), ("Why?", "")]


def test_a_sentence_that_is_too_long_is_cut_between_words() -> None:
    parts = list(long_inputs.split("One two three four five. Six", "en", at_most(2)))
    assert parts == [("One two", " "), ("three four", " "), ("five.", " "), ("Six", "")]


def test_a_word_that_is_too_long_is_cut_between_characters() -> None:
    """Its rest goes together with the next words."""
    parts = list(long_inputs.split("aa bbbbcccdd e f. Six", "en", lambda text: len(text) <= 4))
    assert parts == [("aa", " "), ("bbbb", ""), ("cccd", ""), ("d e", " "), ("f.", " "), ("Six", "")]


def test_a_character_that_is_too_long_is_an_error() -> None:
    with pytest.raises(ValueError, match="the character 'b' alone is too long: a larger --max-length"):
        list(long_inputs.split("aa b", "en", lambda text: "b" not in text))


def test_parts_cost_no_more_in_a_longer_word() -> None:
    """It is not read again as a whole for each of them."""
    read = []

    def fits(text: str) -> bool:
        read.append(len(text))
        return len(text) <= 10

    assert len(list(long_inputs.split("x" * 10_000, "en", fits))) == 1000
    assert sum(read) < 200_000


def slowly(text: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """The same parts, of what is left of the text each time."""
    for sentence, space in long_inputs.split(text, "en", lambda part: True):
        if fits(sentence):
            yield sentence, space
            continue
        words = sentence.split()
        while words:
            if count := longest(words, " ", fits):
                yield " ".join(words[:count]), " " if count < len(words) else space
                words = words[count:]
                continue
            while (count := longest(list(words[0]), "", fits)) < len(words[0]):
                yield words[0][:count], ""
                words[0] = words[0][count:]


def longest(units: list[str], space: str, fits: Callable[[str], bool]) -> int:
    low, high = 0, 1
    while high < len(units) and fits(space.join(units[:high])):
        low, high = high, min(2 * high, len(units))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(space.join(units[:middle])) else (low, middle - 1)
    return low


@given(st.text(alphabet="ab. ß", max_size=60), st.integers(1, 5), st.integers(0, 99))
def test_parts_are_those_of_the_text_that_is_left(text: str, length: int, seed: int) -> None:
    """Even where a part may fit that is longer than one that does not, as with pieces."""

    def fits(part: str) -> bool:
        return len(part) <= length or zlib.crc32(part.encode(), seed) % 2 == 0

    assert list(long_inputs.split(text, "en", fits)) == list(slowly(text, fits))


@given(st.text(alphabet="ab.!? \u2028\nß。[1]", max_size=60), st.integers(1, 5))
def test_nothing_is_lost(text: str, words: int) -> None:
    parts = list(long_inputs.split(text, "en", at_most(words)))
    assert " ".join("".join(part + space for part, space in parts).split()) == " ".join(text.split())
    assert all(part.strip() == part != "" and len(part.split()) <= words for part, _ in parts)
    cut = list(long_inputs.split(text, "en", lambda part: len(part) <= words))
    assert " ".join("".join(part + space for part, space in cut).split()) == " ".join(text.split())
    assert all(part.strip() == part != "" and len(part) <= words for part, _ in cut)
