"""ROUGE by Google's rouge-score, with the settings of the papers: ``ROUGE-1.5.5.pl -m -a -n 2`` (DynamicConv, 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

#: Fields of results, with rouge-score's names. ROUGE-L of a summary is the union of the longest common subsequences of
#: its sentences (Lin 2004, 3.2), as ROUGE-1.5.5.pl has it.
FIELDS = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeLsum"}


def scorer() -> RougeScorer:
    """rouge-score's, with Porter's stemmer (``-m``).

    Raises:
        ValueError: if a library is not installed.
    """
    try:
        import sentencex  # noqa: F401
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError as error:
        raise ValueError(
            f'ROUGE needs rouge-score and sentencex ({error}): pip install "amlp-fairseq[rouge]"'
        ) from None
    return RougeScorer(list(FIELDS.values()), use_stemmer=True)


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, object]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L in percent, each the mean over all summaries, and ``rouge_signature``.

    Only the letters a to z and digits count, so the text must be English. Sentences are found by sentencex, in outputs
    and references alike.

    Args:
        hypotheses: one summary each.
        references: one or several sets, each with as many; of several the one with the highest F1 counts.

    Raises:
        ValueError: if a library is not installed.
    """
    score = scorer().score_multi
    scores = [
        score([sentence_lines(reference) for reference in several], sentence_lines(hypothesis))
        for hypothesis, *several in zip(hypotheses, *references, strict=True)
    ]
    result: dict[str, object] = {
        field: round(100 * fmean(each[name].fmeasure for each in scores), 2) for field, name in FIELDS.items()
    }
    settings = "f1|stemmer:porter|l:summary|sentences:sentencex"
    result["rouge_signature"] = f"{settings} {version('sentencex')}|version:rouge-score {version('rouge-score')}"
    return result


def sentence_lines(text: str) -> str:
    """The sentences of a summary, one a line, which is what rouge-score takes."""
    from sentencex import segment

    return "\n".join(sentence.strip() for sentence in segment("en", text))
