"""The parts of a beam search that writes several words per step, as functions of probability tables.

Source: Zhang et al. (2020), Algorithm 1. Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.ops import cpu_layers
from amlp_fairseq.ops.compiled import loaded
from amlp_fairseq.ops.search_steps import SOURCE
from amlp_fairseq.ops.top_k import top_k


class Continuations(NamedTuple):
    """The k best ways to fill a step's slots, for each of R hypotheses, best first.

    Attributes:
        scores: sums of the slots' log-probabilities, (R, k).
        words: the words, (R, k, z); padding after the end symbol if words after it are ignored.
        word_scores: their log-probabilities, (R, k, z); 0 for such padding.
        ends: index of the first end symbol in the step, z if there is none, (R, k).
    """

    scores: Tensor
    words: Tensor
    word_scores: Tensor
    ends: Tensor


class FinishedHypotheses(NamedTuple):
    """Hypotheses that end in a step, of each sentence the best one first.

    Attributes:
        rows: which one each continues.
        lengths: their words before the end symbol.
        totals: the sums of their log-probabilities.
        words: their words in generation order, the last one is the end symbol, (n + 1,) each, in host memory.
        word_scores: the log-probabilities of these, (n + 1,) each, in host memory.
    """

    rows: list[int]
    lengths: list[int]
    totals: list[float]
    words: list[Tensor]
    word_scores: list[Tensor]


class BeamUpdate(NamedTuple):
    """What becomes of the R = b·B hypotheses of b sentences in a step.

    Attributes:
        scores: of those that go on, (b, B); -inf where a sentence has fewer.
        rows: which one each continues, (R,); None if every row continues itself.
        words, word_scores: its words in this step and their log-probabilities, (R, z).
        remaining: the sentences that are not finished.
        ended: those that end.
    """

    scores: Tensor
    rows: Tensor | None
    words: Tensor
    word_scores: Tensor
    remaining: list[int]
    ended: FinishedHypotheses


# (words chosen in this step so far (R, k, p), candidates for slot p (R, m)) -> forbidden (R, k, m)
Forbidden = Callable[[Tensor, Tensor], Tensor]


def compiled(device: torch.device, forbids: bool) -> bool:
    """Whether ``combine_words`` is in C++ there; not where some candidates are forbidden."""
    return device.type == "cpu" and not forbids and loaded(SOURCE)


def overwrites_logits(device: torch.device, itemsize: int) -> bool:
    """Whether ``log_probabilities`` takes no memory of its own, for logits of so many bytes each."""
    return device.type == "cpu" and itemsize == 4 and loaded(cpu_layers.SOURCE)


def log_probabilities(logits: Tensor) -> Tensor:
    """log-softmax of logits (…, V) in float32; they may be overwritten."""
    if overwrites_logits(logits.device, logits.itemsize) and logits.is_contiguous():
        result: Tensor = torch.ops.amlp_fairseq.log_softmax_(logits)
        return result
    return F.log_softmax(logits, dim=-1, dtype=torch.float32)


def combine_words(
    lprobs: Tensor,
    k: int,
    eos: int,
    pad: int,
    words_behind_end: str = "ignore",
    forbidden: Forbidden | None = None,
    most_forbidden: int = 0,
) -> Continuations:
    """Combine the best words of every slot by outer addition, pruned to k after each slot (lines 10-14).

    Args:
        lprobs: log-probabilities of the step's slots, (R, z, V); a slot of NaN counts as -inf.
        k: combinations to keep per hypothesis.
        eos: the end symbol.
        pad: fills the slots after an end symbol.
        words_behind_end: ``ignore``: the slots after an end symbol hold padding, which adds 0 to the score;
            ``count``: they are filled and scored like any other, as in the authors' search. Either way the k best
            combinations are found exactly.
        forbidden: which candidates may not follow which words of the same step.
        most_forbidden: the most candidates that ``forbidden`` can exclude for one slot.
    """
    if compiled(lprobs.device, forbidden is not None) and lprobs.dtype == torch.float32:
        ignore = words_behind_end == "ignore"
        return Continuations(*torch.ops.amlp_fairseq.combine_words(lprobs, k, eos, pad, ignore))
    n, z, vocab = lprobs.shape
    ignore = words_behind_end == "ignore" and z > 1
    if forbidden is None and z == 1:
        scores, words = top_k(lprobs.squeeze(1), min(k, vocab))
        scores = scores.nan_to_num_(nan=-math.inf, neginf=-math.inf)
        return Continuations(scores, words.unsqueeze(2), scores.unsqueeze(2), words.ne(eos).long())
    top_scores, top_words = top_k(lprobs, min(k + ignore + most_forbidden, vocab))
    top_scores, end_scores = (
        each.nan_to_num(nan=-math.inf, neginf=-math.inf) for each in (top_scores, lprobs[..., eos])
    )
    continuing_scores = top_scores.masked_fill(top_words.eq(eos), -math.inf) if ignore else top_scores

    def candidates(slot: int, words: Tensor) -> Tensor:
        """Scores of what may follow each prefix, (R, 1 or prefixes, m)."""
        scores = (continuing_scores if slot < z - 1 else top_scores)[:, slot].unsqueeze(1)
        if forbidden is None:
            return scores
        return scores.masked_fill(forbidden(words, top_words[:, slot]), -math.inf)

    scores = candidates(0, top_words.new_empty(n, 1, 0)).squeeze(1)
    words = top_words[:, 0].unsqueeze(2)
    ended = []
    if ignore:  # these are complete already, so they compete only with combinations of all z slots, at the end
        # Made on the device: a copy from the host would wait for the decoder call.
        stop = F.pad(top_words.new_full((1,), eos), (0, z - 1), value=pad)
        ended.append((end_scores[:, :1], stop.expand(n, 1, z)))
    for slot in range(1, z):
        if ignore and slot < z - 1:
            stops = stop[: z - slot].expand(*words.shape[:2], -1)
            ended.append((scores + end_scores[:, slot : slot + 1], torch.cat([words, stops], dim=2)))
        totals = scores.unsqueeze(2) + candidates(slot, words)
        scores, best = totals.flatten(1).topk(min(k, totals[0].numel()), dim=1)
        word = top_words[:, slot].gather(1, best % totals.size(2))
        words = torch.cat([_take(words, best // totals.size(2)), word.unsqueeze(2)], dim=2)
    if ended or forbidden is not None:
        scores = torch.cat([scores, *(each for each, _ in ended)], dim=1)
        scores, best = scores.topk(min(k, scores.size(1)), dim=1)
        words = _take(torch.cat([words, *(each for _, each in ended)], dim=1), best)
    ends = words.ne(eos).cumprod(dim=2).sum(dim=2)
    word_scores = lprobs.gather(2, words.transpose(1, 2)).transpose(1, 2)
    if ignore:
        slots = torch.arange(z, device=words.device)
        word_scores = word_scores.masked_fill(slots > ends.unsqueeze(2), 0.0)
    return Continuations(scores, words, word_scores, ends)


def _take(table: Tensor, rows: Tensor) -> Tensor:
    """Rows (R, k) of a table (R, m, p): (R, k, p)."""
    return table.gather(1, rows.unsqueeze(2).expand(-1, -1, table.size(2)))


def advance(
    tokens: Tensor, word_scores: Tensor, scores: Tensor, found: list[int], step: Continuations, keep_all: bool = False
) -> BeamUpdate:
    """Choose the hypotheses that go on, and those that end (lines 15-24).

    A hypothesis that ends counts only if it is among the B best candidates, ended or not, as in fairseq, and its
    sentence has not B already; with ``keep_all`` each that ends counts, as in Algorithm 1. A sentence that has B, or
    nothing that goes on, is finished.

    Args:
        tokens: z start symbols and the words so far, (b·B, z + T).
        word_scores: log-probabilities of the words so far, (b·B, T).
        scores: their sums, (b, B).
        found: how many hypotheses of each sentence have ended, (b,).
        step: the ways to continue each.
        keep_all: whether all that end count.
    """
    if compiled(scores.device, False) and step.scores.dtype == torch.float32:
        kept, rows, words, new_scores, remaining, *ended = torch.ops.amlp_fairseq.advance(
            tokens, word_scores, scores, found, *step, keep_all
        )
        return BeamUpdate(
            kept, rows if scores.size(1) > 1 else None, words, new_scores, remaining, FinishedHypotheses(*ended)
        )
    (sentences, beam), k, z = scores.shape, step.scores.size(1), step.words.size(2)
    totals = (scores.unsqueeze(2) + step.scores.view(-1, beam, k)).flatten(1)
    ends = step.ends.view(-1, beam * k) < z
    best_scores, best = totals.topk(beam * k if keep_all else beam, dim=1)
    remaining, ended = [*range(sentences)], FinishedHypotheses([], [], [], [], [])
    # Here is the only host-device sync per step, unless one of the best candidates ends.
    if not ((best_scores > -math.inf) & ~ends.gather(1, best)).all():
        room = [beam * k if keep_all else beam - count for count in found]
        ended = _ended(tokens, word_scores, room, step, best_scores, best)
        finished = Counter(row // beam for row in ended.rows)
        best_scores, best = totals.masked_fill(ends, -math.inf).topk(beam, dim=1)
        able = (best_scores[:, 0] > -math.inf).tolist()
        remaining = [each for each in remaining if able[each] and found[each] + finished[each] < beam]
    best_scores, best = best_scores[:, :beam], best[:, :beam]
    if beam > 1 and not best.is_cuda:  # on a GPU the sync would cost more than the copies it saves
        order = best.new_tensor([row_permutation(parents) for parents in (best // k).tolist()]).view_as(best)
        best_scores, best = best_scores.gather(1, order), best.gather(1, order)
    chosen = (best + torch.arange(sentences, device=best.device).unsqueeze(1) * (beam * k)).flatten()
    words, new_scores = (table.flatten(0, 1).index_select(0, chosen) for table in (step.words, step.word_scores))
    return BeamUpdate(best_scores, chosen // k if beam > 1 else None, words, new_scores, remaining, ended)


def _ended(
    tokens: Tensor, word_scores: Tensor, room: list[int], step: Continuations, best_scores: Tensor, best: Tensor
) -> FinishedHypotheses:
    """Those of the best candidates (b, …) that end, of each sentence as many as there is room for."""
    (_, k, z), beam, written = step.words.shape, len(step.words) // len(best), word_scores.size(1)
    candidates = best + torch.arange(len(best), device=best.device).unsqueeze(1) * (beam * k)
    ends = step.ends.flatten()[candidates].masked_fill(~best_scores.isfinite(), z)
    chosen, lengths = [], []
    for ways, slots, most in zip(*torch.stack([candidates, ends]).tolist(), room, strict=True):
        those = [(way, slot) for way, slot in zip(ways, slots, strict=True) if slot < z][:most]
        chosen += [way for way, _ in those]
        lengths += [written + slot for _, slot in those]
    rows = [way // k for way in chosen]
    before, new = torch.tensor([rows, chosen], dtype=torch.long, device=best.device)
    words = torch.cat([tokens[before, z:], step.words.flatten(0, 1)[new]], dim=1).cpu()
    scores = torch.cat([word_scores[before], step.word_scores.flatten(0, 1)[new]], dim=1).cpu()
    texts, text_scores = (
        [row[: length + 1] for row, length in zip(table, lengths, strict=True)] for table in (words, scores)
    )
    return FinishedHypotheses(rows, lengths, scores.sum(dim=1, dtype=torch.float64).tolist(), texts, text_scores)


def length_penalty(length: Tensor, alpha: float, kind: str) -> Tensor:
    """The divisor of a hypothesis' score.

    Args:
        length: number of words, the end symbol included.
        alpha: ``--lenpen``.
        kind: ``fairseq``: length^α, with α = 1 Algorithm 1's; ``gnmt``: ((5 + length) / 6)^α (Wu et al. 2016), as in
            the authors' code.
    """
    alpha = float(alpha)  # whole numbers have no negative powers
    return length**alpha if kind == "fairseq" else ((5 + length) / 6) ** alpha


def row_permutation(origins: list[int]) -> list[int]:
    """An order of n rows in which as many as possible stay where they were: the row for each position.

    Args:
        origins: the old position of each row, (n,); several may have the same, or one ≥ n.
    """
    rows = dict.fromkeys(range(len(origins)), -1)  # by position
    moving = []
    for row, origin in enumerate(origins):
        if rows.get(origin) == -1:
            rows[origin] = row
        else:
            moving.append(row)
    return [row if row >= 0 else moving.pop() for row in rows.values()]


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
