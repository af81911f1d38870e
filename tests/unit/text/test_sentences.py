"""Texts are cut up at the ends of sentences, and nothing of them is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amlp_fairseq.text.sentences import cut, split

#: Sentences, parted by |, which is not in the text.
TEXTS = [
    ("en", "She falls asleep. |He sleeps."),
    ("en", "she falls asleep. |he sleeps."),
    ("en", "Dr. Smith went home at 5 p.m. with Mr. Jones, e.g. by bus.  |He was tired!\t|Was he?! |No."),
    ("en", "He lived in the U.S. |She met J. R. R. Tolkien. |See Fig. 3, Eq. 4, No. 5 and p. 7."),
    ("en", "Gu et al. (2018) did it. |How are you? |:-) Fine! |A.B. sleeps."),
    ("en", "It rose by 3.5 percent to $4.20. |Version 1.2.3 is out."),
    ("en", "Wait... |Come here. |Wait… |Come here. |Well… no. |It is so... so big."),
    ("en", '"I am tired. |I want to go." |He said: "Go!" |She left.'),
    ("en", "\"Really?\" he asked. |“No!” she said. |(He left. |She stayed.) |'Yes.' |OK."),
    ("en", "He came home.[1] |Then he left.[2] |Why?"),
    ("en", "1. One item. |2. Another one. |See www.example.com. |It is https://a.b/c.d?e=f. |Go!"),
    ("en", "She falls asleep.|He sleeps. |🙂 Yes. 🙂"),
    ("en", "A poem\n|in two lines\r\n|\n|and a stanza.\n|"),
    ("de", "Dr. Müller kam am 3. Mai im 19. Jahrhundert, z. B. zu Hr. Meier. |„Komm!“ sagte sie. |„Ja.“ |Gut."),
    ("deu_Latn", "Es kostet ca. 3,50 Euro bzw. 4.000 Euro. |Vgl. Abb. 3."),
    ("fr", "M. Dupont a vu M. Durand. |« Viens ! » dit-il. |« Oui. » |Il part. |Qu'est-ce que c'est ? |Rien."),
    ("es", "El Sr. Pérez duerme. |¿Quién? |¡Yo! |Sí."),
    ("zh", "她睡着了。|“你好。”|他走了！|他说：“走吧。”|真的？！|3.5米。"),
    ("zho_Hans", "她睡着了。|他睡觉。"),
    ("jpn_Jpan", "彼女は眠る。|「行け！」と彼は言った。|「はい。」|「３．５だ。」"),
    ("hi", "वह सो गई। |डॉ. शर्मा ३.५ मीटर चले। |क्या? |हाँ!"),
    ("ben_Beng", "সে ঘুমায়। |সে ঘুমায়।"),
    ("pa", "ਉਹ।|ਉਹ॥ ਉਹ।".replace("॥ ", "॥ |")),
    ("ur", "وہ سوتی ہے۔ |کیا؟ |ہاں۔"),
    ("km", "គាត់ដេក។ |នាងដេក។"),
    ("el", "Κοιμάται. |Τι; |Ναι."),
    ("xx", "Dr. Smith sleeps. |She sleeps, too."),
    ("a name of one's own", "Dr. Smith sleeps. |She sleeps, too."),
]


@pytest.mark.parametrize(("code", "text"), TEXTS)
def test_sentences(code: str, text: str) -> None:
    assert "|".join("".join(each) for each in split(text.replace("|", ""), code)) == text.removesuffix("|")


def test_line_feeds_and_spaces() -> None:
    text = "\n Aa.\tBb cc. Dd!  \r\n\n e \n"
    assert list(split(text, "en")) == [
        ("", "\n"), ("", " "), ("Aa.", "\t"), ("Bb cc.", " "), ("Dd!", "  \r\n"), ("", "\n"), ("", " "), ("e", " \n")
    ]  # fmt: skip
    assert list(split("", "en")) == []


def test_without_sentencex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ValueError, match=r"sentencex, .* is not installed: give --no-split-sentences"):
        list(split("A text.", "en"))


def at_most(words: int) -> Callable[[str], bool]:
    return lambda text: len(text.split()) <= words


def parts(text: str, fits: Callable[[str], bool], at_sentences: bool = False) -> list[str]:
    return ["".join(part) for part in cut(text, "en", fits, at_sentences=at_sentences)]


def test_a_sentence_is_cut_between_words() -> None:
    assert parts("One two  three four five.", at_most(2)) == ["One two  ", "three four ", "five."]


def test_a_document_is_cut_between_sentences() -> None:
    assert parts("A. B b. C c c c. D.", at_most(3), at_sentences=True) == ["A. B b. ", "C c c ", "c. D."]


def test_a_word_that_is_too_long_is_cut_between_characters() -> None:
    """Its rest goes together with the next words, accents and vowel signs stay with their letters."""
    assert parts("aa bbbbcccdd e f", lambda text: len(text) <= 4) == ["aa ", "bbbb", "cccd", "d e ", "f"]
    assert parts("e\u0301e\u0301 กำกำ", lambda text: len(text) <= 3) == ["e\u0301", "e\u0301 ", "กำ", "กำ"]


def test_text_without_spaces_is_cut_after_commas() -> None:
    assert parts("今天下雨，我们在家，看书", lambda text: len(text) <= 6) == ["今天下雨，", "我们在家，", "看书"]


def test_a_character_that_is_too_long_is_an_error() -> None:
    with pytest.raises(ValueError, match="the character 'b' alone is too long: a larger --max-length"):
        parts("aa b", lambda text: "b" not in text)


def test_parts_cost_no_more_in_a_longer_word() -> None:
    """The rest of a text is not read again for each part."""
    read = []

    def fits(text: str) -> bool:
        read.append(len(text))
        return len(text) <= 10

    assert len(parts("x" * 10_000, fits)) == 1000
    assert sum(read) < 200_000


CODES = st.sampled_from(["en", "de", "fr", "ja", "zho_Hans", "hi", "hy", "xx"])
ANY_TEXT = st.one_of(st.text(), st.text(alphabet="abÄ1.!?… \u2028\u2029\x0c\r\t\n\"'”»)ß。「」と[1]।’", max_size=60))


@given(ANY_TEXT, CODES)
def test_nothing_is_lost(text: str, code: str) -> None:
    found = list(split(text, code))
    assert "".join(sentence + space for sentence, space in found) == text
    assert all(sentence == sentence.strip() and not space.strip() for sentence, space in found)
    assert all("\n" not in sentence and (sentence or space) for sentence, space in found)
    assert sum("\n" in space for _, space in found) == text.count("\n")


@given(ANY_TEXT.map(str.strip), CODES, st.integers(1, 5), st.booleans())
def test_nothing_is_lost_by_cuts(text: str, code: str, words: int, at_sentences: bool) -> None:
    found = list(cut(text, code, at_most(words), at_sentences=at_sentences))
    assert "".join(part + space for part, space in found) == text
    assert all(len(part.split()) <= words and not space.strip() for part, space in found)
