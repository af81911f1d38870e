"""ROUGE against values computed by hand, and where it stands in results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import commands
import pytest

from amlp_fairseq.evaluation import score
from amlp_fairseq.evaluation.rouge import rouge

#: reference, hypothesis, ROUGE-1, ROUGE-2, ROUGE-L; all of them F1 in percent
BY_HAND = {
    # "killed" and "kill" have one stem. 4 of 5 words and of 4; 3 of 4 bigrams and of 3: 2·0.8/1.8, 2·0.75/1.75.
    "stems": ("Police killed the gunman today.", "police kill the gunman .", 88.89, 85.71, 88.89),
    # Case and punctuation do not count.
    "surface": ("The cat, it sat .", "the cat it sat!", 100.0, 100.0, 100.0),
    # One "the" of three is matched: precision 1/3, recall 1/2.
    "clipped": ("the cat", "the the the", 40.0, 0.0, 40.0),
    # Sentences in another order: all words, 4 of 5 bigrams (one spans the sentences), and both sentences whole, where
    # the longest common subsequence of the whole texts has half of the words.
    "sentences": ("cats sleep late . dogs run fast .", "dogs run fast . cats sleep late .", 100.0, 80.0, 100.0),
    # Lin (2004), Section 3.2: the union of two subsequences has four of the five words; four of ten are right.
    "union": (
        "one two three four five .",
        "one two six seven eight . one three eight nine five .",
        *(53.33, 15.38, 53.33),
    ),
    "nothing in common": ("the cat", "a dog", 0.0, 0.0, 0.0),
    "empty": ("the cat", "", 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    reference, hypothesis, *expected = BY_HAND[name]
    found = rouge([hypothesis], [[reference]])
    assert [found[field] for field in ("rouge_1", "rouge_2", "rouge_l")] == expected


def test_summaries_count_alike_whatever_their_length() -> None:
    """The mean of 100, 40 and 0, not what all words together give."""
    pairs = [BY_HAND[name][:2] for name in ("surface", "clipped", "empty")]
    found = rouge([pair[1] for pair in pairs], [[pair[0] for pair in pairs]])
    assert (found["rouge_1"], found["rouge_l"]) == (46.67, 46.67)


def test_the_signature_names_library_and_settings() -> None:
    signature = str(rouge(["a"], [["a"]])["rouge_signature"])
    assert signature.startswith("f1|stemmer:porter|l:summary|sentences:sentencex ")
    assert signature.endswith("|version:rouge-score 0.1.2")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """ROUGE in place of BLEU; outputs are put into input order."""
    references, hypotheses, *_ = zip(*(BY_HAND[name] for name in ("stems", "clipped")), strict=True)
    generated = "".join(f"H-{i}\t-1\t{hypotheses[i]}\nD-{i}\t-1\t{hypotheses[i]}\nI-{i}\t{i + 1}\n" for i in (1, 0))
    (tmp_path / "generated").write_text(generated, encoding="utf-8")
    (tmp_path / "reference").write_text("".join(line + "\n" for line in references), encoding="utf-8")
    commands.call(score, monkeypatch, tmp_path / "generated", tmp_path / "reference", metric="rouge")
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    facts = {"rouge_1": 64.44, "rouge_2": 42.86, "rouge_l": 64.44, "sentences": 2, "repeated_words": 2}
    assert facts.items() <= result.items()
    assert result["steps_per_sentence"] == 1.5
    assert not {"bleu", "chrf", "bleu_signature"} & result.keys()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(
        ValueError, match=r'ROUGE needs rouge-score and sentencex .*pip install "amlp-fairseq\[rouge\]"'
    ):
        rouge(["a"], [["a"]])
