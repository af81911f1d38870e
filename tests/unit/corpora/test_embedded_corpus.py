"""The synthetic corpus: its grammar by hand, its files, its splits, its share of ambiguous sources."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from amlp_fairseq.corpora import embedded_corpus as corpus

NP, Phrase, Clause, Sentence = corpus.NP, corpus.Phrase, corpus.Clause, corpus.Sentence
HE, SHE, THEY, ME, YOU = (NP(pron=pron) for pron in ("he", "she", "they", "i", "you"))
TEACHER, BOY = NP("teacher"), NP("boy")
TOMORROW, YESTERDAY, EVERY_DAY = (
    Phrase(en, de) for en, de in (("tomorrow", "morgen"), ("yesterday", "gestern"), ("every day", "jeden Tag"))
)
SICK = Clause(HE, "be", comp=Phrase("sick", "krank"))
CALL = Clause(HE, "call", obj=TEACHER)

SENTENCES = {
    "separable": (CALL, "he calls the teacher .", ["er ruft den Lehrer an ."]),
    "separable, verb-final": (
        Sentence(CALL, matrix="she believes"),
        "she believes that he calls the teacher .",
        ["sie glaubt , dass er den Lehrer anruft ."],
    ),
    "separable, perfect": (
        Clause(THEY, "call", "perfect", HE), "they have called him .", ["sie haben ihn angerufen ."],
    ),
    "perfect, verb-final": (
        Sentence(Clause(HE, "read", "perfect", NP("book")), matrix="i hope"),
        "i hope that he has read the book .",
        ["ich hoffe , dass er das Buch gelesen hat ."],
    ),
    "modal": (
        Clause(SHE, "call", "want", ME), "she wants to call me .", ["sie will mich anrufen ."],
    ),
    "modal, verb-final": (
        Sentence(Clause(ME, "help", "must", NP("child")), matrix="we know"),
        "we know that i must help the child .",
        ["wir wissen , dass ich dem Kind helfen muss ."],
    ),
    "perfect with sein, contraction": (
        Clause(ME, "go", "perfect", comp=Phrase("to", "zu", NP("school"))),
        "i have gone to the school .",
        ["ich bin zur Schule gegangen ."],
    ),
    "fronted time": (
        Clause(TEACHER, "call", "future", BOY, time=TOMORROW, front="time"),
        "tomorrow the teacher will call the boy .",
        ["morgen wird der Lehrer den Jungen anrufen ."],
    ),
    "fronted object": (
        Clause(TEACHER, "read", "must", NP("letter", "this"), time=TOMORROW, front="obj"),
        "this letter the teacher must read tomorrow .",
        ["diesen Brief muss der Lehrer morgen lesen ."],
    ),
    "time in three places": (
        Clause(HE, "read", obj=NP("newspaper"), time=EVERY_DAY),
        "he reads the newspaper every day .",
        [
            "er liest jeden Tag die Zeitung .",
            "jeden Tag liest er die Zeitung .",
            "er liest die Zeitung jeden Tag .",
        ],
    ),
    "weil last, weil first, denn": (
        Sentence(CALL, "because", SICK),
        "he calls the teacher because he is sick .",
        [
            "er ruft den Lehrer an , weil er krank ist .",
            "weil er krank ist , ruft er den Lehrer an .",
            "er ruft den Lehrer an , denn er ist krank .",
        ],
    ),
    "weil first": (
        Sentence(CALL, "because", SICK, sub_first=True),
        "because he is sick , he calls the teacher .",
        ["weil er krank ist , ruft er den Lehrer an ."],
    ),
    "obwohl first": (
        Sentence(Clause(BOY, "wait for", "must", TEACHER), "although", SICK, sub_first=True),
        "although he is sick , the boy must wait for the teacher .",
        ["obwohl er krank ist , muss der Junge auf den Lehrer warten ."],
    ),
    "wenn": (
        Sentence(Clause(SHE, "come back", "future"), "if", Clause(NP(pron="it"), "rain"), sub_first=True),
        "if it rains , she will come back .",
        ["wenn es regnet , wird sie zurückkommen ."],
    ),
    "two registers": (
        Clause(YOU, "open", "past", NP("window", "your"), time=YESTERDAY, front="time"),
        "yesterday you opened your window .",
        ["gestern hast du dein Fenster aufgemacht .", "gestern öffneten Sie Ihr Fenster ."],
    ),
    "dative and accusative": (
        Clause(HE, "give", rec=NP("neighbor", adj="old"), obj=NP("apple", "a", "small")),
        "he gives the old neighbor a small apple .",
        ["er gibt dem alten Nachbarn einen kleinen Apfel ."],
    ),
    "sein": (Clause(ME, "be", "past", comp=Phrase("tired", "müde")), "i was tired .", ["ich war müde ."]),
    "preterite, plural": (
        Sentence(Clause(THEY, "arrive", "past"), matrix="you know"),
        "you know that they arrived .",
        ["du weißt , dass sie angekommen sind .", "Sie wissen , dass sie ankamen ."],
    ),
}  # fmt: skip

NOUN_PHRASES = [
    (NP("book", adj="old"), "nom", "das alte Buch"),
    (NP("book", "a", "old"), "nom", "ein altes Buch"),
    (NP("letter", "a", "long"), "nom", "ein langer Brief"),
    (NP("letter", "a", "long"), "acc", "einen langen Brief"),
    (NP("newspaper", "a", "new"), "acc", "eine neue Zeitung"),
    (NP("coffee", "", "hot"), "acc", "heißen Kaffee"),
    (NP("milk", "", "cold"), "acc", "kalte Milch"),
    (NP("water", "", "cold"), "acc", "kaltes Wasser"),
    (NP("egg", "", "fresh", number=21), "acc", "einundzwanzig frische Eier"),
    (NP("window", "the", "small", plural=True), "nom", "die kleinen Fenster"),
    (NP("brother", "our", "tall", plural=True), "dat", "unseren großen Brüdern"),
    (NP("aunt", "her", "friendly"), "dat", "ihrer freundlichen Tante"),
    (NP("uncle", "my", "friendly"), "nom", "mein freundlicher Onkel"),
    (NP("man", "this", "friendly"), "dat", "diesem freundlichen Mann"),
    (NP("student", "a"), "acc", "einen Studenten"),
    (NP("bag", "", plural=True), "dat", "Taschen"),
    (NP("book", "the", "expensive", plural=True), "acc", "die teuren Bücher"),
]

NUMBERS = {1: "eins", 7: "sieben", 12: "zwölf", 16: "sechzehn", 17: "siebzehn", 20: "zwanzig", 30: "dreißig"}
NUMBERS |= {21: "einundzwanzig", 36: "sechsunddreißig", 66: "sechsundsechzig", 71: "einundsiebzig"}

TIMES = [
    (corpus.clock(3, 30), "at half past three", "um halb vier"),
    (corpus.clock(12, 30), "at half past twelve", "um halb eins"),
    (corpus.clock(1, 0), "at one o'clock", "um ein Uhr"),
    (corpus.clock(3, 15), "at quarter past three", "um Viertel nach drei"),
    (corpus.clock(12, 45), "at quarter to one", "um Viertel vor eins"),
    (corpus.clock(6, 50), "at ten to seven", "um zehn vor sieben"),
    (corpus.date(3, 5), "on the third of may", "am dritten Mai"),
    (corpus.date(1, 1), "on the first of january", "am ersten Januar"),
    (corpus.date(7, 3), "on the seventh of march", "am siebten März"),
    (corpus.date(20, 8), "on the twentieth of august", "am zwanzigsten August"),
    (corpus.date(31, 12), "on the thirty-first of december", "am einunddreißigsten Dezember"),
]


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_by_hand(name: str) -> None:
    tree, english, german = SENTENCES[name]
    tree = tree if isinstance(tree, Sentence) else Sentence(tree)
    assert corpus.english(tree) == english
    assert corpus.references(tree) == german


@pytest.mark.parametrize(("np", "case", "german"), NOUN_PHRASES)
def test_declension_by_hand(np: corpus.NP, case: str, german: str) -> None:
    assert corpus._german_np(np, case, corpus.Chooser()) == german


def test_numbers_by_hand() -> None:
    assert {n: corpus.german_number(n) for n in NUMBERS} == NUMBERS
    assert corpus.english_number(21) == "twenty-one"


@pytest.mark.parametrize(("phrase", "english", "german"), TIMES)
def test_times_by_hand(phrase: corpus.Phrase, english: str, german: str) -> None:
    assert (phrase.en, phrase.de) == (english, german)


def test_english_articles_and_agreement() -> None:
    clause = Clause(NP("uncle", "my"), "eat", obj=NP("egg", "a"))
    assert corpus.english(Sentence(clause)) == "my uncle eats an egg ."
    clause = Clause(THEY, "eat", "perfect", obj=NP("egg", "a", "fresh"))
    assert corpus.english(Sentence(clause)) == "they have eaten a fresh egg ."


def test_no_simple_present_for_i() -> None:
    with pytest.raises(ValueError, match="simple present"):
        corpus.references(Sentence(Clause(ME, "sleep")))


def test_samples_are_ambiguous_and_consistent() -> None:
    rng = random.Random(3)
    sampler = corpus.Sampler(rng)
    translations: dict[str, list[str]] = {}
    ambiguous = 0
    for _ in range(2000):
        tree = sampler.sentence()
        source, all_german = corpus.english(tree), corpus.references(tree)
        assert corpus.german(tree, corpus.Chooser(rng)) in all_german
        assert sorted(translations.setdefault(source, all_german)) == sorted(all_german)
        ambiguous += len(all_german) > 1
    assert 0.4 < ambiguous / 2000 < 0.55


def read(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_bytes().decode().split("\n") for path in sorted(folder.iterdir())}


def test_files(tmp_path: Path) -> None:
    sizes = {"train": 5000, "valid": 150, "test": 120}
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        corpus.write(tmp_path / name, corpus.generate(seed, **sizes))
    files, other = read(tmp_path / "one"), read(tmp_path / "two")
    assert files == read(tmp_path / "again")
    assert all(files[name] != other[name] for name in files)
    assert sorted(files) == sorted(f"{name}.{side}" for name in sizes for side in ("en", "de"))

    types: dict[str, set[str]] = {"en": set(), "de": set()}
    for name, lines in files.items():
        split, side = name.split(".")
        assert lines.pop() == ""  # the last line ends too
        assert len(lines) == sizes[split]
        for line in lines:
            assert line
            assert line == " ".join(line.split())
            assert line.endswith(" .")
            types[side] |= set(line.split())
        lengths = [len(line.split()) for line in lines]
        assert side == "en" or (min(lengths) >= 4 and max(lengths) <= 25 and 10 <= sum(lengths) / len(lines) <= 13)
    assert 250 < len(types["en"]) < 450
    assert 350 < len(types["de"]) < 550

    train, valid, test = (set(files[f"{split}.en"]) for split in sizes)
    assert len(valid) == sizes["valid"]
    assert len(test) == sizes["test"]
    assert not train & valid
    assert not (train | valid) & test
    assert not train & set(other["test.en"])  # whatever the seed
    assert 0.9 * sizes["train"] < len(train)
