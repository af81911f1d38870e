"""Perplexity per word of what fairseq-eval-lm says of a text."""

from __future__ import annotations

import re
from pathlib import Path

from fairseq.data import Dictionary

from amlp_fairseq.common.lines import lines
from amlp_fairseq.compat.internals import data_utils


def perplexity(printed: str, data: Path, subset: str) -> dict[str, object]:
    """Perplexity per word: 2 to the power of all units' bits over the number of words.

    The end of a sentence is a unit and a word; unknown words count like others. Words are those between spaces in the
    raw text, so that models with different subword units can be compared.

    Args:
        printed: the log of fairseq-eval-lm.
        data: the data folder, of text of one language.
        subset: ``valid`` or ``test``.

    Returns:
        ``perplexity``, ``sentences``, ``words`` (with the ends of sentences), ``tokens`` (units, likewise) and
        ``unknown_tokens``.

    Raises:
        ValueError: if fairseq has left anything out, as it does silently with sentences that are longer than the model
            allows and with units of probability zero, or if the loss is not a number.
    """
    dictionary = Dictionary.load(str(data / "dict.txt"))
    dataset = data_utils.load_indexed_dataset(str(data / subset), dictionary)
    sentences, tokens = len(dataset), int(dataset.sizes.sum())
    evaluated = re.search(r"Evaluated ([\d,]+) tokens", printed)
    loss = re.search(r"Loss \(base 2\): ([\d.]+)", printed)
    if evaluated is None or loss is None:
        raise ValueError("fairseq-eval-lm has printed no loss that is a number: the model has diverged")
    if (found := int(evaluated[1].replace(",", ""))) != tokens:
        raise ValueError(
            f"{data}: fairseq-eval-lm has evaluated {found} tokens of {subset}, which has {tokens}: it leaves out "
            "sentences that are longer than the model's --max-target-positions"
        )
    if "skipping tokens with inf scores" in printed:
        raise ValueError("fairseq-eval-lm has left out units to which the model gives probability zero")
    (raw,) = (data / "raw").glob(f"{subset}.*")
    words = sentences + sum(len(line.split()) for line in lines(raw))
    return {
        "perplexity": round(2 ** (float(loss[1]) * tokens / words), 2),
        "sentences": sentences,
        "words": words,
        "tokens": tokens,
        "unknown_tokens": sum(int(dataset[i].eq(dictionary.unk()).sum()) for i in range(sentences)),
    }
