"""Metrics of corpora: ``metric`` of their files in configs/data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class Metric(NamedTuple):
    """The numbers of results that say how good a system is.

    Attributes:
        title: what tables call the numbers; in lower case their key in ``published`` of a row.
        main: the field of results that tuning and comparisons take.
        columns: fields of results by their column in tables.
        kinds: for each ``kind`` of published numbers the field of the same kind.
        best: which of several values of ``main`` is the best one, ``max`` or ``min``.
    """

    title: str
    main: str
    columns: dict[str, str]
    kinds: dict[str, str]
    best: Callable[[Sequence[float]], float] = max

    @property
    def column(self) -> str:
        """The column of ``main``."""
        return next(name for name, field in self.columns.items() if field == self.main)


METRICS = {
    # Scores of two kinds are not comparable.
    "bleu": Metric(
        "BLEU",
        "bleu",
        {"BLEU": "bleu", "chrF": "chrf"},
        {
            "detokenised": "bleu",
            "tokenised": "tokenised_bleu",
            "compound-split": "compound_split_bleu",
            "unstated": "bleu",
        },
    ),
    # Japanese, tokenised by that program.
    "kytea": Metric("BLEU", "kytea_bleu", {"BLEU": "kytea_bleu", "chrF": "chrf"}, {"kytea": "kytea_bleu"}),
    "rouge": Metric(
        "ROUGE",
        "rouge_l",
        {"ROUGE-1": "rouge_1", "ROUGE-2": "rouge_2", "ROUGE-L": "rouge_l"},
        {"rouge-1": "rouge_1", "rouge-2": "rouge_2", "rouge-l": "rouge_l"},
    ),
    # Of language models: nothing is written that could be scored.
    "perplexity": Metric("Perplexity", "perplexity", {"perplexity": "perplexity"}, {"per-word": "perplexity"}, min),
}
DEFAULT = "bleu"
OF_OUTPUTS = tuple(name for name in METRICS if name != "perplexity")
KINDS = tuple(kind for metric in METRICS.values() for kind in metric.kinds)


def metric_of(fields: Iterable[str]) -> str:
    """The name of the metric that a result with these fields has; ``bleu`` if it has none."""
    return next((name for name, metric in METRICS.items() if metric.main in fields), DEFAULT)
