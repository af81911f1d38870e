"""Fertilities of source words, from alignments."""

from __future__ import annotations

import numpy as np
from numpy import ndarray


def fertilities(links: ndarray, source: int, target: int) -> ndarray:
    """How many words of the target each word of the source stands for; they sum to ``target``.

    A target word counts for the first source word that it is aligned with; without one, for that of the word before it,
    or of the first aligned word. In a sentence without links the words are shared out evenly.

    Args:
        links: pairs (source word, target word), from 0, (n, 2).
        source: words of the source, at least 1.
        target: words of the target.

    Returns:
        (source,).

    Raises:
        ValueError: for a link to a word that the sentence does not have.
    """
    beyond = ((links < 0) | (links >= [source, target])).any(axis=1)
    if beyond.any():
        first, second = links[beyond][0]
        raise ValueError(f"the alignment {first}-{second} is not one of {source} source and {target} target words")
    words = np.full(target, source)
    np.minimum.at(words, links[:, 1], links[:, 0])
    (aligned,) = np.nonzero(words < source)
    if len(aligned):
        before = np.searchsorted(aligned, np.arange(target), side="right") - 1
        words = words[aligned[before.clip(min=0)]]
    else:
        words = (2 * np.arange(target) + 1) * source // (2 * max(target, 1))
    return np.bincount(words, minlength=source)
