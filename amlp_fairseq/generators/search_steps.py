"""The parts of a beam search that writes several words per step, as functions of probability tables.

Source: Zhang et al. (2020), Algorithm 1. N rows of hypotheses, z words per step, V entries in the dictionary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH_PENALTIES = ("fairseq", "gnmt")
WORDS_BEHIND_END = ("ignore", "count")


class Combinations(NamedTuple):
    """The k best ways to fill a step's slots, for each of N hypotheses, best first.

    Attributes:
        scores: sums of the slots' log-probabilities, (N, k).
        words: the words, (N, k, z); padding behind the end symbol where words behind it are ignored.
        word_scores: their log-probabilities, (N, k, z); 0 for such padding.
        ends: index of the first end symbol in the step, z where there is none, (N, k).
    """

    scores: Tensor
    words: Tensor
    word_scores: Tensor
    ends: Tensor


# (words chosen in this step so far (N, k, p), candidates for slot p (N, m)) -> forbidden (N, k, m)
Forbidden = Callable[[Tensor, Tensor], Tensor]


def combine_words(
    lprobs: Tensor,
    k: int,
    eos: int,
    pad: int,
    words_behind_end: str = "ignore",
    forbidden: Forbidden | None = None,
    most_forbidden: int = 0,
) -> Combinations:
    """Combine the best words of every slot by outer addition, pruned to k after each slot (lines 10-14).

    Args:
        lprobs: log-probabilities of the step's slots, (N, z, V).
        k: combinations to keep per hypothesis.
        eos: the end symbol.
        pad: stands behind an end symbol.
        words_behind_end: ``ignore``: a combination that has ended goes on with padding, which counts 0; ``count``: its
            later slots are filled and counted like any other, as the authors' search does. Either way the k best are
            found exactly.
        forbidden: tells which candidates may not follow which words of the same step.
        most_forbidden: how many candidates ``forbidden`` can exclude for one slot at most.
    """
    n, z, vocab = lprobs.shape
    width = min(k + 1 + most_forbidden, vocab)
    top_scores, top_words = lprobs.topk(width, dim=-1)
    ignore = words_behind_end == "ignore"
    if ignore:
        top_scores = top_scores.masked_fill(top_words.eq(eos), -math.inf)
    going_on = Combinations(
        lprobs.new_zeros(n, 1), top_words.new_zeros(n, 1, 0), lprobs.new_zeros(n, 1, 0), top_words.new_full((n, 1), z)
    )
    ended = []
    for slot in range(z):
        if ignore:
            # What ends here costs nothing later: pruned only at the last, against combinations that are complete.
            end_scores = lprobs[:, slot, eos].view(n, 1, 1).expand(-1, going_on.scores.size(1), -1)
            here = _extend(going_on, end_scores, torch.full_like(end_scores, eos, dtype=torch.long), k, eos)
            ended.append(
                here._replace(
                    words=F.pad(here.words, (0, z - slot - 1), value=pad),
                    word_scores=F.pad(here.word_scores, (0, z - slot - 1)),
                )
            )
        rows = going_on.scores.size(1)
        slot_scores = top_scores[:, slot].unsqueeze(1).expand(-1, rows, -1)
        slot_words = top_words[:, slot].unsqueeze(1).expand(-1, rows, -1)
        if forbidden is not None:
            slot_scores = slot_scores.masked_fill(forbidden(going_on.words, top_words[:, slot]), -math.inf)
        going_on = _extend(going_on, slot_scores, slot_words, k, eos)
    if not ignore:
        return going_on
    together = Combinations(*(torch.cat(tables, dim=1) for tables in zip(going_on, *ended, strict=True)))
    scores, best = together.scores.topk(min(k, together.scores.size(1)), dim=1)
    return Combinations(
        scores, _take(together.words, best), _take(together.word_scores, best), together.ends.gather(1, best)
    )


def _extend(prefixes: Combinations, scores: Tensor, words: Tensor, k: int, eos: int) -> Combinations:
    """The k best prefixes one slot longer; scores and words: what may follow each prefix, (N, prefixes, m)."""
    totals = (prefixes.scores.unsqueeze(2) + scores).flatten(1)
    best_scores, best = totals.topk(min(k, totals.size(1)), dim=1)
    parents = best // scores.size(2)
    word = words.flatten(1).gather(1, best)
    ends = prefixes.ends.gather(1, parents)
    slot = prefixes.words.size(2)
    return Combinations(
        best_scores,
        torch.cat([_take(prefixes.words, parents), word.unsqueeze(2)], dim=2),
        torch.cat([_take(prefixes.word_scores, parents), scores.flatten(1).gather(1, best).unsqueeze(2)], dim=2),
        torch.where(word.eq(eos), ends.clamp(max=slot), ends),
    )


def _take(table: Tensor, rows: Tensor) -> Tensor:
    """Rows (N, k) of a table (N, m, p): (N, k, p)."""
    return table.gather(1, rows.unsqueeze(2).expand(-1, -1, table.size(2)))


def restrict_end(lprobs: Tensor, first_slot: int, min_length: int, max_lengths: Tensor, eos: int) -> None:
    """Forbid the end symbol in slots before ``min_length`` words and force it after ``max_length``, in place.

    Args:
        lprobs: log-probabilities of slots first_slot … first_slot + z - 1, (N, z, V).
        first_slot: number of words before this step.
        min_length: fewest words without the end symbol.
        max_lengths: most words without the end symbol, (N,).
        eos: the end symbol.
    """
    z = lprobs.size(1)
    if first_slot < min_length:
        lprobs[:, : min_length - first_slot, eos] = -math.inf
    last = max_lengths - first_slot
    if int(last.min()) < z:
        rows = ((last >= 0) & (last < z)).nonzero().squeeze(1)
        end_scores = lprobs[rows, last[rows], eos]
        lprobs[rows, last[rows]] = -math.inf
        lprobs[rows, last[rows], eos] = end_scores


def length_penalty(length: Tensor, alpha: float, kind: str) -> Tensor:
    """What a hypothesis' score is divided by.

    Args:
        length: number of words, the end symbol included.
        alpha: ``--lenpen``.
        kind: ``fairseq``: length^α; ``gnmt``: ((5 + length) / 6)^α (Wu et al. 2016, the paper's).
    """
    return length**alpha if kind == "fairseq" else ((5 + length) / 6) ** alpha


def deduplicate_ngrams(words: list[int], max_size: int) -> list[int]:
    """Indices of the words that stay when immediate repetitions are dropped: "a b a b c" becomes "a b c".

    Sizes 1 to ``max_size`` are treated one after the other, from left to right; the first copy stays.
    """
    kept = list(range(len(words)))
    for size in range(1, max_size + 1):
        result: list[int] = []
        position = 0
        while position < len(kept):
            following = kept[position : position + size]
            if len(following) == size and [words[i] for i in result[-size:]] == [words[i] for i in following]:
                position += size
            else:
                result.append(kept[position])
                position += 1
        kept = result
    return kept
