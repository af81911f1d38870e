"""Texts are cut up at the ends of sentences, and nothing of them is lost."""

from collections.abc import Callable

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


def test_a_sentence_that_is_too_long_is_cut_between_words() -> None:
    parts = list(long_inputs.split("One two three four five. Six", "en", at_most(2)))
    assert parts == [("One two", " "), ("three four", " "), ("five.", " "), ("Six", "")]


def test_a_word_that_is_too_long_is_an_error() -> None:
    with pytest.raises(ValueError, match="a word of 5 characters is too long"):
        list(long_inputs.split("aa bbbbb", "en", lambda text: len(text) <= 4))


@given(st.text(alphabet="ab.!? \u2028\nß。", max_size=60), st.integers(1, 5))
def test_nothing_is_lost(text: str, words: int) -> None:
    parts = list(long_inputs.split(text, "en", at_most(words)))
    assert " ".join("".join(part + space for part, space in parts).split()) == " ".join(text.split())
    assert all(part.strip() == part != "" and len(part.split()) <= words for part, _ in parts)
