"""Immediate repetitions of words, which ``--deduplicate-ngrams`` leaves out."""

from __future__ import annotations


def deduplicate_ngrams(words: list[int], max_size: int) -> list[int]:
    """Indices of the words that remain without immediate repetitions: "a b a b c" becomes "a b c".

    Treats sizes 1 to ``max_size`` one after the other, from left to right; the first copy remains.
    """
    indices = list(range(len(words)))
    for size in range(1, max_size + 1):
        result: list[int] = []
        position = 0
        while position < len(indices):
            following = indices[position : position + size]
            if len(following) == size and [words[i] for i in result[-size:]] == [words[i] for i in following]:
                position += size
            else:
                result.append(indices[position])
                position += 1
        indices = result
    return indices
