"""Write a small synthetic English-German parallel corpus from a hand-written grammar.

A ``Sentence`` is a language-neutral tree. ``english`` says it in one way, ``german`` in one of several ways
(a ``Chooser`` answers every choice point) and ``references`` lists all of them. The same seed gives the same
bytes everywhere: the only source of chance is ``random.Random.random``, whose sequence Python guarantees.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml

T = TypeVar("T")
TOKENS = range(4, 26)  # the lengths of a German sentence

# ------------------------------------------------------------------------------------------------ lexicon
LEXICON = yaml.safe_load(Path(__file__).with_name("embedded_lexicon.yaml").read_text(encoding="utf-8"))
ADJECTIVES, ADJECTIVES_OF = LEXICON["adjectives"], LEXICON["adjectives_of"]
MONTHS, WEEKDAYS, TIMES = LEXICON["months"], LEXICON["weekdays"], LEXICON["times"]
STATES, CITIES, RIDES, MATRIX = (LEXICON[name] for name in ("states", "cities", "rides", "matrix"))
PRONOUNS, FINITE, MODALS, CONTRACTIONS = (LEXICON[name] for name in ("pronouns", "finite", "modals", "contractions"))
SMALL_EN, SMALL_DE, TENS_EN, TENS_DE = (
    LEXICON["numbers"][size][language].split() for size in ("small", "tens") for language in ("en", "de")
)
ORDINALS_EN, ORDINALS_DE = LEXICON["ordinals"]["en"], LEXICON["ordinals"]["de"]
ARTICLE, STRONG, WEAK, EIN = (LEXICON["inflection"][name] for name in ("article", "strong", "weak", "ein"))
NUMBERS = (*range(2, 25), *range(30, 100, 10))  # the numbers that the corpus uses


class Noun(NamedTuple):
    """A noun: its classes, English singular and plural, and the unparsed German alternatives."""

    classes: list[str]
    singular: str
    plural: str
    german: str


class Verb(NamedTuple):
    """A verb: English forms, classes and case of the object, flags, unparsed German alternatives."""

    english: list[str]
    objects: list[str]
    case: str
    flags: list[str]
    german: str


def _verb(line: str) -> Verb:
    english, objects, case, flags, german = line.split(";")
    forms = [word.replace("_", " ") for word in english.split()]
    return Verb(forms, objects.split(), case.strip(), flags.split(), german.strip())


NOUNS = {
    entry.split()[0]: Noun(line.split(":")[0].split(), *entry.split())
    for line in LEXICON["nouns"].strip().splitlines()
    for entry in line.split(":", 1)[1].strip(" ,").split(",")
}
VERBS = {verb.english[0]: verb for verb in map(_verb, LEXICON["verbs"].strip().splitlines())}

# ------------------------------------------------------------------------------------------------ trees


@dataclass(frozen=True)
class NP:
    """A pronoun (``pron``, the English subject form), or determiner, number, adjective and noun.

    ``det`` is "the", "this", "a", an English possessive, or "" for none.
    """

    noun: str = ""
    det: str = "the"
    adj: str = ""
    plural: bool = False
    number: int = 0
    pron: str = ""


@dataclass(frozen=True)
class Phrase:
    """An adverbial or complement: a fixed pair of texts, or a preposition with a noun phrase in the dative."""

    en: str
    de: str
    np: NP | None = None


@dataclass(frozen=True)
class Clause:
    """One clause; ``front`` says what opens it in English: "" (the subject), "time" or "obj"."""

    subj: NP
    verb: str
    tense: str = "present"  # or "past", "perfect", or one of MODALS
    obj: NP | None = None
    rec: NP | None = None
    comp: Phrase | None = None
    manner: Phrase | None = None
    place: Phrase | None = None
    time: Phrase | None = None
    front: str = ""


@dataclass(frozen=True)
class Sentence:
    """A clause: alone, joined to a second one (``link``), or a that-clause after ``matrix``."""

    main: Clause
    link: str = ""  # "because", "although", "if" or "and"
    sub: Clause | None = None
    sub_first: bool = False
    matrix: str = ""


class Chooser:
    """Answers the choice points of one translation; a key that comes again gets the same answer.

    The answers come from ``script`` first, then from ``rng`` if there is one, else they are 0.
    """

    def __init__(self, rng: random.Random | None = None, script: Sequence[int] = ()) -> None:
        self.rng, self.script = rng, script
        self.answers: dict[str, int] = {}
        self.sizes: list[int] = []

    def pick(self, key: str, size: int) -> int:
        """Return a number below ``size``, the same for every call with this key."""
        if key not in self.answers:
            done = len(self.sizes)
            free = int(self.rng.random() * size) if self.rng else 0
            self.answers[key] = self.script[done] if done < len(self.script) else free
            self.sizes.append(size)
        return self.answers[key]

    def option(self, text: str) -> str:
        """Resolve one lexicon entry: "spoken|written" by the register, "a/b" freely."""
        if "|" in text:
            return text.split("|")[self.pick("register", 2)]
        return text.split("/")[self.pick(text, 2)] if "/" in text else text


# ------------------------------------------------------------------------------------------------ numbers


def english_number(n: int) -> str:
    """Return 1..99 in English words as one token (21: "twenty-one")."""
    tens, ones = divmod(n, 10)
    return SMALL_EN[n] if n < 20 else TENS_EN[tens - 2] + (f"-{SMALL_EN[ones]}" if ones else "")


def german_number(n: int) -> str:
    """Return 1..99 in German words (21: "einundzwanzig")."""
    tens, ones = divmod(n, 10)
    head = "ein" if ones == 1 else SMALL_DE[ones]
    return SMALL_DE[n] if n < 20 else (f"{head}und" if ones else "") + TENS_DE[tens - 2]


def date(day: int, month: int) -> Phrase:
    """Return a date as a time phrase ("on the third of may", "am dritten Mai")."""
    head, dash, last = english_number(day).rpartition("-")
    last = ORDINALS_EN.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    german = ORDINALS_DE.get(day) or german_number(day) + ("ten" if day < 20 else "sten")
    en, de = list(MONTHS.items())[month - 1]
    return Phrase(f"on the {head}{dash}{last} of {en}", f"am {german} {de}")


def clock(hour: int, minute: int) -> Phrase:
    """Return a time of day, hour 1..12 ("at half past three", "um halb vier")."""
    after = hour % 12 + 1
    if minute == 0:
        return Phrase(f"at {english_number(hour)} o'clock", f"um {'ein' if hour == 1 else german_number(hour)} Uhr")
    if minute == 30:
        return Phrase(f"at half past {english_number(hour)}", f"um halb {german_number(after)}")
    past = minute < 30
    gap, near = (minute, hour) if past else (60 - minute, after)
    en, de = ("quarter", "Viertel") if gap == 15 else (english_number(gap), german_number(gap))
    return Phrase(
        f"at {en} {'past' if past else 'to'} {english_number(near)}",
        f"um {de} {'nach' if past else 'vor'} {german_number(near)}",
    )


# ------------------------------------------------------------------------------------------------ English


def _is_plural(np: NP) -> bool:
    return np.pron in ("we", "they") or np.plural or np.number > 1


def _english_np(np: NP | None) -> str:
    if not np:
        return ""
    if np.pron:
        return PRONOUNS[np.pron][0]
    det = "these" if np.det == "this" and _is_plural(np) else np.det
    noun = NOUNS[np.noun].plural if _is_plural(np) else NOUNS[np.noun].singular
    rest = f"{english_number(np.number) if np.number else ''} {np.adj} {noun}".split()
    return " ".join(["an" if det == "a" and rest[0][0] in "aeiou" else det, *rest]).strip()


def _english_phrase(phrase: Phrase | None) -> str:
    return f"{phrase.en} {_english_np(phrase.np)}" if phrase else ""


def _english_verb(verb: str, tense: str, subj: NP) -> str:
    third = not _is_plural(subj) and subj.pron not in ("i", "you")
    base, present, past, participle = VERBS[verb].english
    if verb == "be" and tense == "past":
        return "was" if third or subj.pron == "i" else "were"
    if verb == "be":
        return "am" if subj.pron == "i" else "is" if third else "are"
    if tense in MODALS:
        return f"{'wants to' if third and tense == 'want' else MODALS[tense]} {base}"
    if tense == "perfect":
        return f"{'has' if third else 'have'} {participle}"
    return past if tense == "past" else present if third else base


def _english_clause(c: Clause) -> str:
    obj, rec, time = _english_np(c.obj), _english_np(c.rec), _english_phrase(c.time)
    first = {"time": time, "obj": obj}.get(c.front, "")
    time, obj = "" if c.front == "time" else time, "" if c.front == "obj" else obj
    objects = f"{obj} to {rec}" if rec and "T" in VERBS[c.verb].flags else f"{rec} {obj}"
    parts = [first, c.subj.pron or _english_np(c.subj), _english_verb(c.verb, c.tense, c.subj), objects]
    return " ".join(" ".join([*parts, *map(_english_phrase, (c.comp, c.manner, c.place)), time]).split())


def english(sentence: Sentence) -> str:
    """Return the English side, tokenised and in lower case."""
    main = _english_clause(sentence.main)
    if not sentence.sub:
        return f"{sentence.matrix} that {main} ." if sentence.matrix else f"{main} ."
    sub = _english_clause(sentence.sub)
    return f"{sentence.link} {sub} , {main} ." if sentence.sub_first else f"{main} {sentence.link} {sub} ."


# ------------------------------------------------------------------------------------------------ German


def _cell(table: dict[str, str], case: str, gender: str) -> str:
    return table[case].split()["mfnp".index(gender)].strip("-")


def _german_np(np: NP | None, case: str, ch: Chooser) -> str:
    if not np:
        return ""
    if np.pron:
        return ch.option(PRONOUNS[np.pron][2]).split()[("nom", "acc", "dat").index(case) + 1]
    gender, noun, *more = ch.option(NOUNS[np.noun].german).split(":")
    if _is_plural(np):
        gender, noun = "p", more[0] + ("n" if case == "dat" and more[0][-1] not in "ns" else "")
    elif more[1:] and case != "nom":
        noun = more[1]
    det, ending = "", ""
    if np.det == "the":
        det = ending = _cell(ARTICLE, case, gender)
    elif np.det == "this":
        ending = _cell(STRONG, case, gender)
        det = "dies" + ending
    elif np.det:
        ending = _cell(EIN, case, gender)
        stems = {possessive: forms for _, possessive, forms in PRONOUNS.values()}
        det = ("ein" if np.det == "a" else ch.option(stems[np.det]).split()[4]) + ending
    # an adjective is weak after a determiner that shows case and gender, else strong
    adj = ch.option(ADJECTIVES[np.adj]) + _cell(WEAK if ending else STRONG, case, gender) if np.adj else ""
    return " ".join(f"{det} {german_number(np.number) if np.number else ''} {adj} {noun}".split())


def _german_phrase(phrase: Phrase | None, ch: Chooser) -> str:
    if not phrase:
        return ""
    text = " ".join(ch.option(word) for word in phrase.de.split())
    text += f" {_german_np(phrase.np, 'dat', ch)}" if phrase.np else ""
    for long, short in CONTRACTIONS.items():
        text = short + text.removeprefix(long) if text.startswith(long) else text
    return text


def _german_verb(c: Clause, ch: Chooser) -> tuple[str, str, str]:
    """Return the finite verb of a main clause, what closes that clause, and the verbs of a subordinate one."""
    pron = "they" if _is_plural(c.subj) else c.subj.pron
    person = int(ch.option(PRONOUNS[pron][2])[0]) if pron else 2
    infinitive, present, past, participle, *aux = ch.option(VERBS[c.verb].german).split()
    prefix, _, infinitive = infinitive.rpartition("+")
    if c.verb == "be":
        finite = FINITE["war" if c.tense == "past" else "sein"].split()[person]
        return finite, "", finite
    spoken_past = c.tense == "past" and ch.pick("register", 2) == 0
    if spoken_past or c.tense == "perfect":
        finite, rest = FINITE[aux[0] if aux else "haben"].split()[person], prefix + participle
        return finite, rest, f"{rest} {finite}"
    if c.tense in MODALS:
        finite, rest = FINITE[c.tense].split()[person], prefix + infinitive
        return finite, rest, f"{rest} {finite}"
    if c.tense == "past":
        finite = past + (("n" if past.endswith("e") else "en") if person == 3 else "")
    elif person < 2:
        raise ValueError("the lexicon has no simple present for i and you")
    else:
        finite = infinitive if person == 3 else present
    return finite, prefix, prefix + finite


def _german_clause(c: Clause, ch: Chooser, order: str = "v2") -> str:
    """Say a clause in one of the orders "v2", "final" (subordinate) and "inverted" (another part comes first).

    "free" is "v2" where a time that English has last may also come first or after the objects.
    """
    preposition, _, case = VERBS[c.verb].case.rpartition(" ")
    front = c.front if order in ("v2", "free") else ""
    new = c.obj and (preposition or c.obj.det in ("", "a"))
    where = "before"  # where the time stands in the middle of the clause
    if order == "free" and not front and c.time:  # a known noun may also precede it
        where = ("before", "front", "after")[ch.pick("time", 3 if c.obj and not new and not c.obj.pron else 2)]
        front = "time" if where == "front" else ""
    subj, rec = _german_np(c.subj, "nom", ch), _german_np(c.rec, "dat", ch)
    obj = f"{preposition} {_german_np(c.obj, case, ch)}".strip()
    time, manner, place, comp = (_german_phrase(p, ch) for p in (c.time, c.manner, c.place, c.comp))
    finite, closing, verbs = _german_verb(c, ch)
    first = {"time": time, "obj": obj}.get(front, "")
    time, obj = "" if front == "time" else time, "" if front == "obj" else obj
    pronoun = late = ""
    if c.rec and c.rec.pron:
        pronoun, rec = rec, ""
    elif c.obj and c.obj.pron and not preposition:
        pronoun, obj = obj, ""
    if new:  # it follows the place
        late, obj = obj, ""
    middle = [pronoun, rec, obj, time] if where == "after" else [pronoun, time, rec, obj]
    middle += [manner, place, late, comp]
    if order == "final":
        parts = [subj, *middle, verbs]
    elif front or order == "inverted":
        parts = [first, finite, subj, *middle, closing]
    else:
        parts = [subj, finite, *middle, closing]
    return " ".join(part for part in parts if part)


def german(sentence: Sentence, chooser: Chooser) -> str:
    """Return the translation that the chooser's answers select, tokenised, not capitalised at the start."""
    main, sub, ch = sentence.main, sentence.sub, chooser
    if sentence.matrix:
        return f"{ch.option(MATRIX[sentence.matrix])} , dass {_german_clause(main, ch, 'final')} .".replace("_", " ")
    if not sub:
        return f"{_german_clause(main, ch, 'free')} ."
    if sentence.link == "and":
        return f"{_german_clause(main, ch, 'free')} und {_german_clause(sub, ch)} ."
    order = 1 if sentence.sub_first else ch.pick("order", 3 if sentence.link == "because" else 2)
    if order == 2:
        return f"{_german_clause(main, ch, 'free')} , denn {_german_clause(sub, ch)} ."
    conjunction = ch.option({"because": "weil", "although": "obwohl", "if": "wenn"}[sentence.link])
    sub_text = f"{conjunction} {_german_clause(sub, ch, 'final')}"
    if order == 1:  # the subordinate clause fills the first place, so that the finite verb comes next
        return f"{sub_text} , {_german_clause(main, ch, 'inverted')} ."
    return f"{_german_clause(main, ch, 'free')} , {sub_text} ."


def references(sentence: Sentence) -> list[str]:
    """Return all translations of a sentence, each once, in a fixed order."""
    found: dict[str, None] = {}
    script: list[int] = []
    while True:
        chooser = Chooser(script=script)
        found[german(sentence, chooser)] = None
        script = list(chooser.answers.values())
        while script and script[-1] + 1 == chooser.sizes[len(script) - 1]:
            script.pop()
        if not script:
            return list(found)
        script[-1] += 1


# ------------------------------------------------------------------------------------------------ sampling

NOW = "present present present present perfect perfect future must want can".split()
THEN = "past past past past past past had".split()
LINKS = ["", "", "", "", "", "", "", "that", "that", "because", "although", "if", "and"]

# Probabilities: of clauses that are a state or on a schedule and not an action, and of clauses in the past, …
STATE, SCHEDULE, PAST = 0.08, 0.12, 0.3
#: … of a noun phrase: an adjective, the plural, a number before a plural, no article before a drink, a pronoun instead;
ADJECTIVE, PLURAL, COUNTED, DRINK_WITHOUT_ARTICLE, PRONOUN = 0.3, 0.2, 0.4, 0.8, 0.3
#: of what an event, a person or an action may have;
CITY, AGE, RECIPIENT, RIDE, COMPANION, PLACE = 0.4, 0.3, 0.3, 0.4, 0.4, 0.35
#: of a time in a clause, which is alone, the first or the second of two, or after "that";
TIME = {"alone": 0.75, "linked": 0.3, "second": 0.25, "that": 0.5}
#: of what comes first: a time, an object with "this", the second of two clauses;
TIME_FIRST, OBJECT_FIRST, SECOND_FIRST = {"past": 0.15, "other": 0.9}, 0.5, {"past": 0.1, "other": 0.8}
#: of a second clause about the same subject, or about rain.
SAME_SUBJECT, RAIN = 0.5, 0.12


class Sampler:
    """Draws sentences from the grammar."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def _choose(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _pair(self, pairs: dict[str, str], pattern: str = "{}", german_pattern: str = "") -> Phrase:
        en, de = self._choose(list(pairs.items()))
        return Phrase(pattern.format(en), (german_pattern or pattern).format(de))

    def _number(self, pattern: str, german_pattern: str, numbers: Sequence[int] = NUMBERS) -> Phrase:
        n = self._choose(numbers)
        return Phrase(pattern.format(english_number(n)), german_pattern.format(german_number(n)))

    def _noun(self, cls: str, owner: str = "") -> NP:
        """Return a noun phrase of one class; ``owner`` is the possessive that refers to the subject."""
        name = self._choose([name for name, noun in NOUNS.items() if cls in noun.classes])
        adj = self._choose(ADJECTIVES_OF[cls].split()) if self._chance(ADJECTIVE) else ""
        many = NOUNS[name].plural != "-" and self._chance(PLURAL)
        if cls == "kin":
            return NP(name, owner or self._choose(("my", "our")), adj, many)
        if cls == "drink":
            return NP(name, "" if self._chance(DRINK_WITHOUT_ARTICLE) else "the", adj)
        if many and self._chance(COUNTED):
            return NP(name, "", adj, number=self._choose(NUMBERS if cls == "food" else NUMBERS[:11]))
        own = owner if owner and cls in ("read", "text", "thing", "food") else "the"
        det = self._choose(("the", "the", "the", own, "this", "a"))
        return NP(name, "the" if many and det == "a" else det, adj, many)

    def _people(self, owner: str, pronouns: Sequence[str]) -> NP:
        """Return one of the pronouns or a noun for a person."""
        if self._chance(PRONOUN):
            return NP(pron=self._choose(pronouns))
        return self._noun(self._choose(("person", "person", "kin")), owner)

    def _time(self, kind: str) -> Phrase:
        time = self._pair(TIMES[kind])
        if time.de:
            return time
        if time.en == "date":
            return date(1 + self._choose(range(24)), 1 + self._choose(range(12)))
        day = self._pair(WEEKDAYS, "on {}", "am {}")
        at = clock(1 + self._choose(range(12)), self._choose((0, 0, 10, 15, 20, 30, 30, 45, 50)))
        return {"day": day, "clock": at}.get(time.en, Phrase(f"{day.en} {at.en}", f"{day.de} {at.de}"))

    def _owner(self, subj: NP) -> str:
        """Return the English possessive that refers to a person ("" where the two languages may differ)."""
        if subj.pron:
            return PRONOUNS[subj.pron][1]
        return "their" if _is_plural(subj) else {"m": "his", "f": "her"}.get(NOUNS[subj.noun].german[0], "")

    def _subject(self, pronouns: Sequence[str]) -> NP:
        return self._people(self._choose(("my", "our", "his", "her", "their")), pronouns)

    def _state(self, tense: str, subj: NP | None) -> Clause:
        """Say how somebody is, or how old."""
        subj = subj or self._subject(["i", "he", "she", "we", "they"])
        if self._chance(AGE) and not _is_plural(subj) and subj.noun not in ("child", "girl", "boy"):
            return Clause(subj, "be", tense, comp=self._number("{} years old", "{} Jahre alt", NUMBERS[-12:]))
        return Clause(subj, "be", tense, comp=self._pair(STATES))

    def _schedule(self, tense: str) -> Clause:
        """Say when an event, a train or a bus begins, arrives and so on, or what a thing costs."""
        cls = self._choose(("event", "event", "vehicle", "vehicle", "thing"))
        subj = replace(self._noun(cls), number=0, plural=False)
        if cls == "thing":
            return Clause(replace(subj, det=subj.det or "the"), "cost", tense, comp=self._number("{} euros", "{} Euro"))
        verb = self._choose([name for name in VERBS if cls in VERBS[name].flags])
        where = verb in ("arrive", "take place") and self._chance(CITY)
        time = self._time("past" if tense == "past" else "plan")
        return Clause(subj, verb, tense, comp=self._pair(CITIES, "in {}") if where else None, time=time)

    def _action(self, tense: str, time: float, subj: NP | None) -> Clause:
        """Say what somebody does, with a time phrase with the given probability."""
        name = self._choose([n for n, v in VERBS.items() if not {"event", "vehicle", "other"} & {*v.flags}])
        verb = VERBS[name]
        pronouns = ["he", "she", "we", "they"] + (["i", "you"] if tense != "present" else [])
        if not subj or (subj.pron and subj.pron not in pronouns):
            subj = self._subject(pronouns)
        if name == "read" and tense == "past" and (_is_plural(subj) or subj.pron in ("i", "you")):
            tense = "had"  # "they read" says nothing about the tense
        owner = self._owner(subj)
        same = {"i": ("i", "we"), "we": ("i", "we"), "you": ("you",)}.get(subj.pron, ())
        others = [p for p in PRONOUNS if p not in same and p != "it"]
        obj = rec = comp = manner = place = when = None
        if verb.objects:
            cls = self._choose(verb.objects)
            obj = self._people(owner, others) if cls == "people" else self._noun(cls, owner)
        if "D" in verb.flags or ("d" in verb.flags and self._chance(RECIPIENT)):
            rec = self._people(owner, others)
        if "C" in verb.flags:
            comp = self._pair(CITIES, "to {}", "nach {}")
        if "G" in verb.flags:
            comp = Phrase("to", "zu", self._noun("goal"))
        if name == "travel" and self._chance(RIDE):
            manner = self._pair(RIDES)
        elif "W" in verb.flags and self._chance(COMPANION):
            manner = Phrase("with", "mit", self._people(owner, others))
        if "P" in verb.flags and not rec and self._chance(PLACE):
            where = self._noun("place")
            pairs = {"in": "in", "in front of": "vor", "behind": "hinter"}
            place = replace(self._pair(pairs if "goal" in NOUNS[where.noun].classes else {"in": "in"}), np=where)
        if self._chance(time):
            kinds = {"present": "habit", "had": "past", "past": "past", "perfect": "perfect"}
            when = self._time(kinds.get(tense, "coming"))
        front = "time" if when and self._chance(TIME_FIRST["past" if tense == "past" else "other"]) else ""
        if obj and not rec and obj.det == "this" and verb.case == "acc" and self._chance(OBJECT_FIRST):
            front = "obj"
        return Clause(subj, name, tense, obj, rec, comp, manner, place, when, front)

    def _clause(self, tenses: Sequence[str], time: float, subj: NP | None = None, action: bool = False) -> Clause:
        simple, draw = "past" if tenses is THEN else "present", self.rng.random()
        if action or draw > STATE + SCHEDULE:
            return self._action(self._choose(tenses), time, subj)
        return self._state(simple, subj) if draw < STATE else self._schedule(simple)

    def sentence(self) -> Sentence:
        """Return a sentence."""
        link = self._choose(LINKS)
        tenses = THEN if self._chance(PAST) else NOW
        if link == "that":
            return Sentence(replace(self._clause(tenses, TIME["that"]), front=""), matrix=self._choose(list(MATRIX)))
        if link == "if":
            tenses = ["future", "can", "must", "want"]
        main = self._clause(tenses, TIME["linked" if link else "alone"], action=link == "if")
        if not link:
            return Sentence(main)
        again = None  # often the second subject is the first one as a pronoun
        if self._chance(SAME_SUBJECT) and (main.subj.pron or {"person", "kin"} & {*NOUNS[main.subj.noun].classes}):
            pron = {"his": "he", "her": "she", "their": "they"}.get(self._owner(main.subj), main.subj.pron)
            again = NP(pron=pron) if pron else None
        if link != "and" and self._chance(RAIN):
            sub = Clause(NP(pron="it"), "rain", "past" if tenses is THEN else "present" if link == "if" else "future")
        else:
            sub = self._clause(["present"] if link == "if" else tenses, TIME["second"], again)
        sub_first = link != "and" and self._chance(SECOND_FIRST["past" if tenses is THEN else "other"])
        return Sentence(replace(main, front="") if sub_first else main, link, replace(sub, front=""), sub_first)


def generate(seed: int = 1, train: int = 20000, valid: int = 500, test: int = 500) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs (English, German) of each split, see ``fill``."""
    rng = random.Random(seed)
    sampler = Sampler(rng)

    def draw() -> tuple[str, str]:
        sentence = sampler.sentence()
        return english(sentence), german(sentence, Chooser(rng))

    return fill(draw, {"train": train, "valid": valid, "test": test})


def fill(draw: Callable[[], tuple[str, str]], sizes: dict[str, int]) -> dict[str, list[tuple[str, str]]]:
    """Draw the pairs (source, target) of each split; only the training split repeats a source.

    A checksum of the source alone says which split it belongs to, so that no two splits share one, whatever
    the seeds that they were made with.
    """
    splits: dict[str, list[tuple[str, str]]] = {name: [] for name in sizes}
    seen: set[str] = set()
    while any(len(splits[name]) < size for name, size in sizes.items()):
        source, target = draw()
        name = {0: "valid", 1: "test"}.get(zlib.crc32(source.encode()) % 16, "train")
        if len(splits[name]) == sizes[name] or len(target.split()) not in TOKENS:
            continue
        if name == "train" or source not in seen:
            splits[name].append((source, target))
        seen.add(source)
    return splits


def write(out_dir: Path, splits: dict[str, list[tuple[str, str]]], languages: Sequence[str] = ("en", "de")) -> None:
    """Write train.en, train.de and so on, one sentence per line; the sources alone if there is one language."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        for side, language in enumerate(languages):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (out_dir / f"{name}.{language}").write_bytes(text.encode("utf-8"))
