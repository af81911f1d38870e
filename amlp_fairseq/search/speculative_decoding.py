"""Speculative decoding: greedy search of an autoregressive model with several words per call. A draft proposes the next
words, one call verifies them, and the words that the model would have written itself are kept.

The output is greedy search's. Stern et al. (2018), "Blockwise Parallel Decoding for Deep Autoregressive Models",
and Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding". Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.model import Model
from amlp_fairseq.engine.order import Prefix
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.drafts import Draft, Drafter
from amlp_fairseq.search.engine_search import search as search_in_engine
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.rules import Prefixes, score_rules
from amlp_fairseq.search.search_steps import combine_words, log_probabilities, penalized, row_permutation


class SpeculativeDecoding(MultiwordBeamSearch):
    """Finds greedy search's hypothesis, in ⌈n/(K+1)⌉ calls for n words, the end symbol included, if all drafts are
    right, and in n calls if none is. ``steps`` of a hypothesis counts the calls of this model alone; in PyTorch
    ``drafts`` has for each call the drafted words, and how many of them were kept.

    Args:
        models: one autoregressive model with softmax attention.
        tgt_dict: target dictionary.
        order: left to right.
        options: with beam 1.
        drafter: makes the drafts.
        draft_words: K, number of drafted words that a call verifies.
        use_engine, shortlist: as ``MultiwordBeamSearch``.

    Raises:
        ValueError: for several models, another beam, an order that is not left to right, and CUDA graphs.
    """

    def __init__(
        self,
        models: list[FairseqEncoderDecoderModel],
        tgt_dict: Dictionary,
        order: GenerationOrder,
        options: SearchOptions,
        drafter: Drafter,
        draft_words: int,
        use_engine: bool = True,
        shortlist: Shortlist | None = None,
    ) -> None:
        refused = [
            name
            for name, is_refused in (
                (f"{len(models)} models in --path", len(models) > 1),
                (f"--beam {options.beam_size}: give --beam 1", options.beam_size > 1),
                ("a model that is not autoregressive", not order.left_to_right),
                ("--cuda-graphs", options.cuda_graphs),
            )
            if is_refused
        ]
        if refused:
            raise ValueError(f"a draft (--draft-path, --draft, --draft-file) does not support {'; '.join(refused)}")
        if draft_words < 1:
            raise ValueError(f"--draft-words must be at least 1, not {draft_words}")
        super().__init__(models, tgt_dict, order, options, use_engine=use_engine, shortlist=shortlist)
        self.drafter, self.draft_words = drafter, draft_words

    def search_in_pytorch(
        self, net_input: dict[str, Tensor], sentences: list[int], hypotheses: list[list[dict[str, Any]]]
    ) -> None:
        _SpeculativeSearch(self, net_input, sentences, hypotheses).run()

    def search_in_engine(
        self, model: Model, sources: list[list[int]], prefixes: Sequence[Prefix] = ()
    ) -> list[list[dict[str, Any]]]:
        drafts = self.drafter.begin(sources)

        def propose(number: int, words: list[int], count: int) -> list[int]:
            return drafts[number].propose(words, count)

        if prefixes:
            raise ValueError("--prefix-size: not with a draft")
        return search_in_engine(model, sources, self.options, propose, self.draft_words, shortlist=self.shortlist)

    def check_engine(self, model: Model) -> None:
        super().check_engine(model)
        if not model.takes_words_back:
            raise UnsupportedError("a draft for this model")


@dataclass
class _Hypothesis:
    """A hypothesis that is being written.

    Attributes:
        sentence: index in the batch.
        source: (S,).
        max_length: maximum number of words, without the end symbol.
        draft: proposes words.
        words: the words so far.
        scores: their log-probabilities.
        attention: attention of the words over the source, a table (n, S) for each call.
        drafts: for each call the drafted words, and how many of them were right.
    """

    sentence: int
    source: Tensor
    max_length: int
    draft: Draft
    words: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    drafts: list[tuple[list[int], int]] = field(default_factory=list)


class _SpeculativeSearch:
    """The state of one batch's search.

    Attributes:
        unfinished: the hypothesis of each unfinished sentence.
        finished: the finished hypotheses of every sentence of the batch.
    """

    def __init__(
        self,
        generator: SpeculativeDecoding,
        net_input: dict[str, Tensor],
        sentences: list[int],
        hypotheses: list[list[dict[str, Any]]],
    ) -> None:
        self.generator, self.options, self.finished = generator, generator.options, hypotheses
        source, lengths = net_input["src_tokens"][sentences], net_input["src_lengths"][sentences]
        (model,) = generator.inference_models(generator.models)
        self.device, limits = source.device, generator.max_lengths(source)
        self.decoding = model.begin_speculative(source, lengths)
        drafts = generator.drafter.begin([row[row.ne(generator.pad)].tolist() for row in source])
        self.unfinished = [_Hypothesis(*fields) for fields in zip(sentences, source, limits, drafts, strict=True)]
        self.rules = score_rules(self.options, generator.pad, generator.eos, generator.unk)
        self.ngrams = generator.ngrams()

    def run(self) -> None:
        calls = 0
        while self.unfinished:
            calls += 1
            self._verify(calls)

    def _verify(self, calls: int) -> None:
        """One call: every hypothesis gets the words of its draft up to the first wrong one, and the right word in its
        place."""
        generator, device = self.generator, self.device
        proposals = [self._proposal(hypothesis) for hypothesis in self.unfinished]
        count = max(map(len, proposals)) + 1
        read = [
            [hypothesis.words[-1] if hypothesis.words else generator.eos, *proposal]
            + [generator.pad] * (count - 1 - len(proposal))
            for hypothesis, proposal in zip(self.unfinished, proposals, strict=True)
        ]
        logits, attention = self.decoding.verify(torch.tensor(read, device=device), bool(self.options.alignment))
        words, scores = self._best(logits, proposals)
        remaining = []
        for index, (hypothesis, proposal) in enumerate(zip(self.unfinished, proposals, strict=True)):
            right = next((i for i, word in enumerate(proposal) if words[index][i] != word), len(proposal))
            hypothesis.drafts.append((proposal, right))
            hypothesis.words += words[index][: right + 1]
            hypothesis.scores += scores[index][: right + 1]
            if attention is not None:
                hypothesis.attention.append(attention[index, : right + 1])
            if hypothesis.words[-1] == generator.eos:
                self._finish(hypothesis, calls)
            elif hypothesis.scores[-1] > -math.inf:
                remaining.append(index)
        if 0 < len(remaining) < len(self.unfinished):
            remaining = [remaining[index] for index in row_permutation(remaining)]
            self.decoding.reorder(torch.tensor(remaining, device=device))
        self.unfinished = [self.unfinished[index] for index in remaining]
        self.decoding.truncate([len(hypothesis.words) for hypothesis in self.unfinished])

    def _proposal(self, hypothesis: _Hypothesis) -> list[int]:
        """The next words of the draft, up to its end symbol, which no word follows."""
        words = hypothesis.draft.propose(
            hypothesis.words, min(self.generator.draft_words, hypothesis.max_length - len(hypothesis.words))
        )
        return words[: words.index(self.generator.eos)] if self.generator.eos in words else words

    def _best(self, logits: Tensor, proposals: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        """The best next word after each word read, given that the draft is right up to it, and its log-probability,
        (R, k) each, for logits (R, k, V)."""
        generator, options, (rows, count, vocab) = self.generator, self.options, logits.shape
        if options.repetition_penalty != 1:
            logits = logits.clone()
            for index, (hypothesis, proposal) in enumerate(zip(self.unfinished, proposals, strict=True)):
                for slot in range(len(proposal) + 1):
                    written = torch.tensor(
                        [[*hypothesis.words, *proposal[:slot]]], dtype=torch.long, device=self.device
                    )
                    here = logits[index, slot].view(1, 1, vocab)
                    here.copy_(penalized(here, written, options.repetition_penalty))
        if options.temperature != 1:
            logits = logits / options.temperature
        unlisted = generator.unlisted(torch.stack([hypothesis.source for hypothesis in self.unfinished]))
        if unlisted is not None:
            logits = logits.masked_fill(unlisted.unsqueeze(1), -math.inf)
        lprobs = log_probabilities(logits)
        for index, hypothesis in enumerate(self.unfinished):
            max_lengths = torch.tensor([hypothesis.max_length], device=self.device)
            prefixes = Prefixes(torch.tensor([hypothesis.words], dtype=torch.long), max_lengths, hypothesis.max_length)
            for rule in self.rules:
                rule(lprobs[index : index + 1], prefixes)
        combine = partial(combine_words, lprobs.view(rows * count, 1, vocab), 1, generator.eos, generator.pad)
        if self.ngrams is None:
            best = combine()
        else:
            banned = [
                self.ngrams.banned(hypothesis.words + proposal[:slot])
                for hypothesis, proposal in zip(self.unfinished, proposals, strict=True)
                for slot in range(count)
            ]
            best = combine(
                forbidden=lambda _, candidates: _are_members(candidates, banned), max_forbidden=max(map(len, banned))
            )
        words, scores = best.words[:, 0, 0], best.scores[:, 0]
        return words.view(rows, count).tolist(), scores.view(rows, count).tolist()

    def _finish(self, hypothesis: _Hypothesis, calls: int) -> None:
        """Add a finished hypothesis, after ``calls`` decoder calls."""
        words, word_scores = torch.tensor(hypothesis.words), torch.tensor(hypothesis.scores)
        total, length = torch.tensor(sum(hypothesis.scores)), torch.tensor(len(hypothesis.words))
        attention = torch.cat(hypothesis.attention) if hypothesis.attention else None
        score = self.generator.normalized(total, length)
        result = self.generator.hypothesis(words, word_scores, score, attention, hypothesis.source, calls)
        self.finished[hypothesis.sentence].append({**result, "drafts": hypothesis.drafts})


def _are_members(candidates: Tensor, sets: list[set[int]]) -> Tensor:
    """True for candidates (n, m) in the set of their row: (n, 1, m) bool."""
    members = [[[word in banned for word in row]] for row, banned in zip(candidates.tolist(), sets, strict=True)]
    return torch.tensor(members, device=candidates.device)
