"""Summaries of made-up documents: a keyword and several sentences of the embedded corpus in, one sentence out.

The sentence that the keyword is the subject of is the one to be found. Its summary is its main clause in other words:
the subject without its adjective, the perfect as past tense, the time first or last, as chance has it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from amlp_fairseq.corpora.embedded_corpus import NOUNS, Sampler, Sentence, english, fill

#: Number of sentences of a document.
SENTENCES = 3


def mentions(text: str, noun: str) -> bool:
    """True if a noun is in a text, in the singular or plural."""
    return not {NOUNS[noun].singular, NOUNS[noun].plural}.isdisjoint(text.split())


def summary(sentence: Sentence, rng: random.Random) -> str:
    """The main clause in other words."""
    clause = sentence.main
    return english(
        Sentence(
            replace(
                clause,
                subj=replace(clause.subj, adj=""),
                tense="past" if clause.tense == "perfect" else clause.tense,
                front="time" if clause.time and rng.random() < 0.5 else "",
            )
        )
    )


def document(sampler: Sampler) -> tuple[str, str]:
    """A keyword and ``SENTENCES`` sentences, of which one mentions the keyword; and the summary of that one."""
    asked = sampler.sentence()
    while asked.main.subj.pron:
        asked = sampler.sentence()
    noun = asked.main.subj.noun
    sentences: list[str] = []
    while len(sentences) < SENTENCES - 1:
        text = english(sampler.sentence())
        if not mentions(text, noun):
            sentences.append(text)
    sentences.insert(int(sampler.rng.random() * SENTENCES), english(asked))
    return f"{NOUNS[noun].singular} : {' '.join(sentences)}", summary(asked, sampler.rng)


def generate(seed: int = 1, train: int = 20000, valid: int = 500, test: int = 500) -> dict[str, list[tuple[str, str]]]:
    """The pairs (document, summary) of each split, see ``embedded_corpus.fill``."""
    sampler = Sampler(random.Random(seed))
    return fill(lambda: document(sampler), {"train": train, "valid": valid, "test": test})
