"""The steps of a beam search that writes several words per step, as functions of probability tables.

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

from amlp_fairseq.ops.top_k import top_k


class Continuations(NamedTuple):
    """The k best continuations of each of R hypotheses, best first: the words of a step's z slots.

    Attributes:
        scores: sums of the slots' log-probabilities, (R, k).
        words: the words, (R, k, z); padding after the end symbol if words after it are ignored.
        word_scores: log-probabilities of the words, (R, k, z); 0 for such padding.
        ends: index of the first end symbol in the step, z if there is none, (R, k).
    """

    scores: Tensor
    words: Tensor
    word_scores: Tensor
    ends: Tensor


class FinishedHypotheses(NamedTuple):
    """The hypotheses that end in a step, for each sentence best first.

    Attributes:
        rows: index of the hypothesis that each continues.
        lengths: number of words before the end symbol.
        totals: sum of the log-probabilities.
        words: words in generation order, the last one is the end symbol, (n + 1,) each, in host memory.
        word_scores: log-probabilities of the words, (n + 1,) each, in host memory.
    """

    rows: list[int]
    lengths: list[int]
    totals: list[float]
    words: list[Tensor]
    word_scores: list[Tensor]


class BeamUpdate(NamedTuple):
    """The result of a step for the R = b·B hypotheses of b sentences.

    Attributes:
        scores: scores of the unfinished hypotheses, (b, B); -inf where a sentence has fewer.
        rows: index of the hypothesis that each continues, (R,); None if every row continues itself.
        words, word_scores: the words of this step and their log-probabilities, (R, z).
        remaining: indices of the unfinished sentences.
        finished: the hypotheses that end.
    """

    scores: Tensor
    rows: Tensor | None
    words: Tensor
    word_scores: Tensor
    remaining: list[int]
    finished: FinishedHypotheses


# (words chosen in this step so far (R, k, p), candidates for slot p (R, m)) -> forbidden (R, k, m)
Forbidden = Callable[[Tensor, Tensor], Tensor]


def log_probabilities(logits: Tensor) -> Tensor:
    """log-softmax of logits (…, V), in float32."""
    return F.log_softmax(logits, dim=-1, dtype=torch.float32)


def penalized(logits: Tensor, words: Tensor, penalty: float) -> Tensor:
    """Logits (R, z, V) in which those of words that have been written, (R, T), are divided by a penalty, or multiplied
    by it if they are negative (Keskar et al. 2019, who have positive logits)."""
    index = words.unsqueeze(1).expand(-1, logits.size(1), -1)
    written = logits.gather(2, index)
    return logits.scatter(2, index, torch.where(written < 0, written * penalty, written / penalty))


def combine_words(
    lprobs: Tensor,
    k: int,
    eos: int,
    pad: int,
    words_after_end: str = "ignore",
    forbidden: Forbidden | None = None,
    max_forbidden: int = 0,
) -> Continuations:
    """Combine the best words of every slot by outer addition, pruned to k after each slot (lines 10-14).

    Args:
        lprobs: log-probabilities of the step's slots, (R, z, V); a slot of NaN counts as -inf.
        k: continuations to keep per hypothesis.
        eos: the end symbol.
        pad: fills the slots after an end symbol.
        words_after_end: ``ignore``: the slots after an end symbol hold padding, which adds 0 to the score;
            ``count``: they are filled and scored like any other, as in the authors' search. Either way the k best
            continuations are exact.
        forbidden: masks the candidates that must not follow the words of the same step so far.
        max_forbidden: maximum number of candidates that ``forbidden`` masks for one slot.
    """
    n, z, vocab = lprobs.shape
    ignore = words_after_end == "ignore" and z > 1
    if forbidden is None and z == 1:
        scores, words = top_k(lprobs.squeeze(1), min(k, vocab))
        scores = scores.nan_to_num_(nan=-math.inf, neginf=-math.inf)
        return Continuations(scores, words.unsqueeze(2), scores.unsqueeze(2), words.ne(eos).long())
    top_scores, top_words = top_k(lprobs, min(k + ignore + max_forbidden, vocab))
    top_scores, end_scores = (
        table.nan_to_num(nan=-math.inf, neginf=-math.inf) for table in (top_scores, lprobs[..., eos])
    )
    continuing_scores = top_scores.masked_fill(top_words.eq(eos), -math.inf) if ignore else top_scores

    def candidates(slot: int, words: Tensor) -> Tensor:
        """Scores of the candidates that may follow each prefix, (R, 1 or prefixes, m)."""
        scores = (continuing_scores if slot < z - 1 else top_scores)[:, slot].unsqueeze(1)
        if forbidden is None:
            return scores
        return scores.masked_fill(forbidden(words, top_words[:, slot]), -math.inf)

    scores = candidates(0, top_words.new_empty(n, 1, 0)).squeeze(1)
    words = top_words[:, 0].unsqueeze(2)
    complete: list[tuple[Tensor, Tensor]] = []  # end early, so they compete only with fillings of all z slots, last
    if ignore:
        # Made on the device: a copy from the host would wait for the decoder call.
        stop = F.pad(top_words.new_full((1,), eos), (0, z - 1), value=pad)
        complete.append((end_scores[:, :1], stop.expand(n, 1, z)))
    for slot in range(1, z):
        if ignore and slot < z - 1:
            stops = stop[: z - slot].expand(*words.shape[:2], -1)
            complete.append((scores + end_scores[:, slot : slot + 1], torch.cat([words, stops], dim=2)))
        totals = scores.unsqueeze(2) + candidates(slot, words)
        scores, best = totals.flatten(1).topk(min(k, totals[0].numel()), dim=1)
        word = top_words[:, slot].gather(1, best % totals.size(2))
        words = torch.cat([_take(words, best // totals.size(2)), word.unsqueeze(2)], dim=2)
    if complete or forbidden is not None:
        scores = torch.cat([scores, *(end_scores for end_scores, _ in complete)], dim=1)
        scores, best = scores.topk(min(k, scores.size(1)), dim=1)
        words = _take(torch.cat([words, *(end_words for _, end_words in complete)], dim=1), best)
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
    tokens: Tensor,
    word_scores: Tensor,
    scores: Tensor,
    finished_counts: list[int],
    continuations: Continuations,
    keep_all: bool = False,
) -> BeamUpdate:
    """Choose the hypotheses that continue, and the ones that end (lines 15-24).

    A hypothesis that ends counts only if it is among the B best candidates, finished or not, as in fairseq, and its
    sentence has fewer than B already; with ``keep_all`` every hypothesis that ends counts, as in Algorithm 1. A
    sentence that has B, or nothing to continue, is finished.

    Args:
        tokens: z start symbols and the words so far, (b·B, z + T).
        word_scores: log-probabilities of the words so far, (b·B, T).
        scores: sums of the log-probabilities, (b, B).
        finished_counts: number of finished hypotheses of each sentence, (b,).
        continuations: of each hypothesis.
        keep_all: see above.
    """
    (sentences, beam), k, z = scores.shape, continuations.scores.size(1), continuations.words.size(2)
    totals = (scores.unsqueeze(2) + continuations.scores.view(-1, beam, k)).flatten(1)
    ends = continuations.ends.view(-1, beam * k) < z
    best_scores, best = totals.topk(beam * k if keep_all else beam, dim=1)
    remaining, finished = [*range(sentences)], FinishedHypotheses([], [], [], [], [])
    # Here is the only host-device sync per step, unless one of the best candidates ends.
    if not ((best_scores > -math.inf) & ~ends.gather(1, best)).all():
        room = [beam * k if keep_all else beam - count for count in finished_counts]
        finished = _finished(tokens, word_scores, room, continuations, best_scores, best)
        new_counts = Counter(row // beam for row in finished.rows)
        best_scores, best = totals.masked_fill(ends, -math.inf).topk(beam, dim=1)
        continues = (best_scores[:, 0] > -math.inf).tolist()
        remaining = [i for i in remaining if continues[i] and finished_counts[i] + new_counts[i] < beam]
    best_scores, best = best_scores[:, :beam], best[:, :beam]
    if beam > 1 and not best.is_cuda:  # on a GPU the sync would cost more than the copies it saves
        order = best.new_tensor([row_permutation(parents) for parents in (best // k).tolist()]).view_as(best)
        best_scores, best = best_scores.gather(1, order), best.gather(1, order)
    chosen = (best + torch.arange(sentences, device=best.device).unsqueeze(1) * (beam * k)).flatten()
    words, new_scores = (
        table.flatten(0, 1).index_select(0, chosen) for table in (continuations.words, continuations.word_scores)
    )
    return BeamUpdate(best_scores, chosen // k if beam > 1 else None, words, new_scores, remaining, finished)


def _finished(
    tokens: Tensor,
    word_scores: Tensor,
    room: list[int],
    continuations: Continuations,
    best_scores: Tensor,
    best: Tensor,
) -> FinishedHypotheses:
    """The best candidates (b, …) that end, at most ``room`` of each sentence."""
    (_, k, z), beam, written = continuations.words.shape, len(continuations.words) // len(best), word_scores.size(1)
    candidates = best + torch.arange(len(best), device=best.device).unsqueeze(1) * (beam * k)
    ends = continuations.ends.flatten()[candidates].masked_fill(~best_scores.isfinite(), z)
    chosen: list[int] = []
    lengths: list[int] = []
    for indices, slots, count in zip(*torch.stack([candidates, ends]).tolist(), room, strict=True):
        ending = [(index, slot) for index, slot in zip(indices, slots, strict=True) if slot < z][:count]
        chosen += [index for index, _ in ending]
        lengths += [written + slot for _, slot in ending]
    rows = [index // k for index in chosen]
    before, new = torch.tensor([rows, chosen], dtype=torch.long, device=best.device)
    words = torch.cat([tokens[before, z:], continuations.words.flatten(0, 1)[new]], dim=1).cpu()
    scores = torch.cat([word_scores[before], continuations.word_scores.flatten(0, 1)[new]], dim=1).cpu()
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
    """An order of n rows in which as many as possible keep their position: the row for each position.

    Args:
        origins: the old position of each row, (n,); may repeat a position, and have positions ≥ n.
    """
    rows = dict.fromkeys(range(len(origins)), -1)  # by position
    moving = []
    for row, origin in enumerate(origins):
        if rows.get(origin) == -1:
            rows[origin] = row
        else:
            moving.append(row)
    return [row if row >= 0 else moving.pop() for row in rows.values()]
