"""Greedy decoding of an autoregressive model, several words per call: a draft proposes the next words, one call checks
them, and those are kept that the model would have written itself.

The words are those of greedy search; Stern et al. (2018), "Blockwise Parallel Decoding for Deep Autoregressive Models",
and Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding". Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.drafts import Draft, Drafter
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.rules import Prefixes, score_rules
from amlp_fairseq.search.search_steps import combine_words, log_probabilities, row_permutation


class SpeculativeDecoding(MultiwordBeamSearch):
    """Finds what greedy search finds, in ⌈n/(K+1)⌉ calls for n words, the end symbol included, if all drafts are right,
    and in n calls if none is. ``steps`` of a hypothesis are the calls of this model alone; ``drafts`` has for each call
    the words that were drafted, and how many of them were kept.

    Args:
        models: one autoregressive model with softmax attention.
        tgt_dict: target dictionary.
        options: with beam 1.
        drafter: of the drafts.
        draft_words: K, how many words of a draft a call checks.

    Raises:
        ValueError: for several models, another beam, an order that is not left to right, and CUDA graphs.
    """

    def __init__(
        self,
        models: list[Any],
        tgt_dict: Dictionary,
        order: GenerationOrder,
        options: SearchOptions,
        drafter: Drafter,
        draft_words: int,
    ) -> None:
        refused = [
            name
            for name, given in (
                (f"{len(models)} models in --path", len(models) > 1),
                (f"--beam {options.beam_size}: give --beam 1", options.beam_size > 1),
                ("a model that is not autoregressive", not order.left_to_right),
                ("--cuda-graphs", options.cuda_graphs),
            )
            if given
        ]
        if refused:
            raise ValueError(f"a draft (--draft-path, --draft, --draft-file) does not support {'; '.join(refused)}")
        if draft_words < 1:
            raise ValueError(f"--draft-words must be at least 1, not {draft_words}")
        super().__init__(models, tgt_dict, order, options)
        self.drafter, self.draft_words = drafter, draft_words

    def search(
        self, net_input: dict[str, Tensor], sentences: list[int], hypotheses: list[list[dict[str, Any]]]
    ) -> None:
        _SpeculativeSearch(self, net_input, sentences, hypotheses).run()


@dataclass
class _Row:
    """A sentence that is being written: its index in the batch, its source (S,), the most words that it may have, its
    draft; its words so far, their log-probabilities, tables (n, S) of their attention over the source, and for each
    call what was drafted and how much of it was right."""

    sentence: int
    source: Tensor
    most: int
    draft: Draft
    words: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    drafts: list[tuple[list[int], int]] = field(default_factory=list)


class _SpeculativeSearch:
    """The state of one batch's search."""

    def __init__(
        self,
        generator: SpeculativeDecoding,
        net_input: dict[str, Tensor],
        sentences: list[int],
        hypotheses: list[list[dict[str, Any]]],
    ) -> None:
        self.generator, self.options, self.hypotheses = generator, generator.options, hypotheses
        source, lengths = net_input["src_tokens"][sentences], net_input["src_lengths"][sentences]
        (model,) = generator.inference_models(generator.models)
        self.device, limits = source.device, generator.max_lengths(source)
        self.decoding = model.begin_speculative(source, lengths)
        drafts = generator.drafter.begin(net_input, sentences)
        self.rows = [_Row(*each) for each in zip(sentences, source, limits, drafts, strict=True)]
        self.rules = score_rules(self.options, generator.pad, generator.eos, generator.unk)
        self.ngrams = generator.ngrams()

    def run(self) -> None:
        calls = 0
        while self.rows:
            calls += 1
            self._verify(calls)

    def _verify(self, calls: int) -> None:
        """One call: every row gets the words of its draft up to the first wrong one, and the right one for that."""
        generator, device = self.generator, self.device
        proposals = [self._proposal(row) for row in self.rows]
        count = max(map(len, proposals)) + 1
        read = [
            [row.words[-1] if row.words else generator.eos, *proposal] + [generator.pad] * (count - 1 - len(proposal))
            for row, proposal in zip(self.rows, proposals, strict=True)
        ]
        logits, attention = self.decoding.verify(torch.tensor(read, device=device), bool(self.options.alignment))
        words, scores = self._best(logits, proposals)
        kept = []
        for index, (row, proposal) in enumerate(zip(self.rows, proposals, strict=True)):
            right = next((i for i, word in enumerate(proposal) if words[index][i] != word), len(proposal))
            row.drafts.append((proposal, right))
            row.words += words[index][: right + 1]
            row.scores += scores[index][: right + 1]
            if attention is not None:
                row.attention.append(attention[index, : right + 1])
            if row.words[-1] == generator.eos:
                self._finish(row, calls)
            elif row.scores[-1] > -math.inf:
                kept.append(index)
        if 0 < len(kept) < len(self.rows):
            kept = [kept[index] for index in row_permutation(kept)]
            self.decoding.reorder(torch.tensor(kept, device=device))
        self.rows = [self.rows[index] for index in kept]
        self.decoding.truncate([len(row.words) for row in self.rows])

    def _proposal(self, row: _Row) -> list[int]:
        """The next words of the row's draft; its end is not read, for nothing follows it."""
        words = row.draft.propose(row.words, min(self.generator.draft_words, row.most - len(row.words)))
        return words[: words.index(self.generator.eos)] if self.generator.eos in words else words

    def _best(self, logits: Tensor, proposals: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        """The best word behind each word that was read, given that the draft is right up to there, and its
        log-probability, (R, k) each."""
        generator, options, (rows, count, vocab) = self.generator, self.options, logits.shape
        if options.temperature != 1:
            logits = logits / options.temperature
        lprobs = log_probabilities(logits)
        for index, row in enumerate(self.rows):
            most = torch.tensor([row.most], device=self.device)
            prefixes = Prefixes(torch.tensor([row.words], dtype=torch.long), most, row.most)
            for rule in self.rules:
                rule(lprobs[index : index + 1], prefixes)
        combine = partial(combine_words, lprobs.view(rows * count, 1, vocab), 1, generator.eos, generator.pad)
        if self.ngrams is None:
            best = combine()
        else:
            banned = [
                self.ngrams.banned(row.words + proposal[:slot])
                for row, proposal in zip(self.rows, proposals, strict=True)
                for slot in range(count)
            ]
            best = combine(
                forbidden=lambda _, candidates: _are_in(candidates, banned), most_forbidden=max(map(len, banned))
            )
        words, scores = best.words[:, 0, 0], best.scores[:, 0]
        return words.view(rows, count).tolist(), scores.view(rows, count).tolist()

    def _finish(self, row: _Row, calls: int) -> None:
        words, word_scores = torch.tensor(row.words), torch.tensor(row.scores)
        total, length = torch.tensor(sum(row.scores)), torch.tensor(len(row.words))
        attention = torch.cat(row.attention) if row.attention else None
        score = self.generator.normalized(total, length)
        found = self.generator.hypothesis(words, word_scores, score, attention, row.source, calls)
        self.hypotheses[row.sentence].append({**found, "drafts": row.drafts})


def _are_in(candidates: Tensor, sets: list[set[int]]) -> Tensor:
    """Which candidates (n, m) are in the set of their row: (n, 1, m) bool."""
    found = [[[word in each for word in row]] for row, each in zip(candidates.tolist(), sets, strict=True)]
    return torch.tensor(found, device=candidates.device)
