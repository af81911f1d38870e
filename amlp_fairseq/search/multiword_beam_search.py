"""Beam search that writes z = h·c words per decoder call (Zhang et al. 2020, Algorithm 1), as a fairseq generator.

Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.decoding.inference_model_cache import InferenceModelCache, are_frozen
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.lengths import exceeding, most_words
from amlp_fairseq.engine.model import Model
from amlp_fairseq.engine.order import Prefix
from amlp_fairseq.engine.repetitions import deduplicate_ngrams
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.engine_models import EngineModels
from amlp_fairseq.search.engine_search import search as search_in_engine
from amlp_fairseq.search.engine_search import unsupported
from amlp_fairseq.search.hypotheses import move
from amlp_fairseq.search.memory_limit import needed_bytes, refuse_too_large
from amlp_fairseq.search.no_repeat_ngrams import NoRepeatNgrams
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.reranking import Reranker
from amlp_fairseq.search.rules import Prefixes, score_rules
from amlp_fairseq.search.search_steps import (
    Continuations,
    FinishedHypotheses,
    advance,
    combine_words,
    length_penalty,
    log_probabilities,
    penalized,
    row_permutation,
)


class MultiwordBeamSearch:
    """Finds the hypotheses with the best score per length; for h = c = 1 the same as fairseq's SequenceGenerator.

    Lengths are counted in words; length penalties count the end symbol, limits do not. A hypothesis is finished when
    any word of a step is the end symbol. Limits are per sentence, so outputs do not depend on the batch. A source
    without words gives an empty hypothesis.

    Args:
        models: one model, or several whose probabilities are averaged.
        tgt_dict: target dictionary.
        order: h, c and the order of generation.
        options: all but ``decode_dtype`` and ``cuda_graphs`` may be replaced between batches.
        reranking_model: an autoregressive model whose scores decide which of the finished hypotheses is the best.
        use_engine: on a CPU the C++ engine searches, where it has the model and the options.
        shortlist: of the words that outputs may have.
    """

    def __init__(
        self,
        models: list[FairseqEncoderDecoderModel],
        tgt_dict: Dictionary,
        order: GenerationOrder,
        options: SearchOptions,
        reranking_model: FairseqEncoderDecoderModel | None = None,
        use_engine: bool = True,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.models, self.reranking_model, self.shortlist = models, reranking_model, shortlist
        self.reranker = Reranker(tgt_dict, options.decode_dtype, use_engine)
        self.pad, self.unk, self.eos = tgt_dict.pad(), tgt_dict.unk(), tgt_dict.eos()
        self.vocab = len(tgt_dict)
        self.symbols_to_strip_from_output = {self.eos}
        self.order = order
        self.options = options
        self.inference_models = InferenceModelCache(self.prepare_for_inference)
        self.engine_models = EngineModels(Model, use_engine)

    def prepare_for_inference(self, model: FairseqEncoderDecoderModel) -> InferenceModel:
        """The inference model of a model, with the present options."""
        options = self.options
        return InferenceModel(model, options.decode_dtype, options.cuda_graphs and are_frozen([model]))

    @torch.no_grad()
    def generate(
        self,
        models: list[FairseqEncoderDecoderModel],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        **kwargs: object,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch.

        Args:
            models: ignored, as in fairseq's SequenceGenerator, which uses the models of its construction.
            sample: batch with ``net_input.src_tokens`` (sentences, S) and ``src_lengths`` (sentences,).
            prefix_tokens: what the translations begin with, (sentences, p), padded at the end; in the engine, for
                models that write from left to right.

        Returns:
            for each sentence at most B hypotheses, best first, as dicts: ``tokens`` (n,) in reading order with the end
            symbol, ``score``, ``positional_scores`` (n,), ``attention`` (S, n) or None, ``alignment``, and ``steps``,
            the number of decoder calls.

        Raises:
            ValueError: for constraints and unknown arguments, for prefixes without the engine, if ``min_len`` exceeds a
                sentence's limit, and if the search would need more memory than there is.
            RuntimeError: if a sentence has no hypothesis.
        """
        unknown = [*(["constraints"] if constraints is not None else ()), *kwargs]
        if unknown:
            raise ValueError(f"the multi-word beam search does not support {', '.join(unknown)}")
        for model in self.models:
            if model.training:
                model.eval()
        source = sample["net_input"]["src_tokens"]
        hypotheses: list[list[dict[str, Any]]] = [[] for _ in source]
        has_words = (source.ne(self.pad) & source.ne(self.eos)).any(dim=1)
        sentences = has_words.nonzero().squeeze(1).tolist()
        for row in {*range(len(hypotheses))}.difference(sentences):
            hypotheses[row] = [self._empty_hypothesis()]
        if sentences:
            # Tensors made in inference mode could not be used in training.
            with torch.inference_mode() if are_frozen(self.models) else torch.no_grad():
                self.search(sample["net_input"], sentences, hypotheses, prefix_tokens)
                for row in sentences:
                    hypotheses[row] = sorted(hypotheses[row], key=_badness)[: self.options.beam_size]
                rows = [row for row in sentences if hypotheses[row]]
                if self.reranking_model is not None and rows:
                    nonempty = [hypotheses[row] for row in rows]
                    self.reranker.rerank(self.reranking_model, source[rows], nonempty, self.normalized)
        for row, of_sentence in enumerate(hypotheses):
            if not of_sentence:
                raise RuntimeError(
                    f"sentence {row} of the batch has no hypothesis: the model gives no word a finite probability, "
                    "or --min-len and --no-repeat-ngram-size leave none"
                )
            of_sentence.sort(key=_badness)
        move([hypothesis for of_sentence in hypotheses for hypothesis in of_sentence], source.device)
        return hypotheses

    def search(
        self,
        net_input: dict[str, Tensor],
        sentences: list[int],
        hypotheses: list[list[dict[str, Any]]],
        prefix_tokens: Tensor | None = None,
    ) -> None:
        """Translate some of a batch's sentences.

        Args:
            net_input: the batch's.
            sentences: indices of the sentences in the batch.
            hypotheses: the finished hypotheses of every sentence of the batch, to which this adds.
            prefix_tokens: see :meth:`generate`.
        """
        model = self.engine_model()
        if model is None:
            if prefix_tokens is not None:
                raise ValueError("prefix_tokens: the multi-word beam search in PyTorch does not support them")
            self.search_in_pytorch(net_input, sentences, hypotheses)
            return
        sources = [source[source.ne(self.pad)].tolist() for source in net_input["src_tokens"][sentences]]
        self.max_lengths(net_input["src_tokens"][sentences])
        rows, z = len(sentences) * self.options.beam_size, self.order.words_per_step
        needed = rows * z * self.vocab * 4  # the logits
        refuse_too_large(needed, len(sentences), self.options.beam_size, torch.device("cpu"))
        prefixes = () if prefix_tokens is None else self._prefixes(model, prefix_tokens[sentences])
        for sentence, found in zip(sentences, self.search_in_engine(model, sources, prefixes), strict=True):
            hypotheses[sentence] += found

    def search_in_pytorch(
        self, net_input: dict[str, Tensor], sentences: list[int], hypotheses: list[list[dict[str, Any]]]
    ) -> None:
        """As :meth:`search`."""
        _Search(self, net_input, sentences, hypotheses).run()

    def search_in_engine(
        self, model: Model, sources: list[list[int]], prefixes: Sequence[Prefix] = ()
    ) -> list[list[dict[str, Any]]]:
        """The hypotheses of sources, tokens with the end symbol."""
        return search_in_engine(model, sources, self.options, prefixes=prefixes, shortlist=self.shortlist)

    def _prefixes(self, model: Model, prefix_tokens: Tensor) -> list[Prefix]:
        """Prefixes for the engine of prefixes (sentences, p), padded at the end."""
        return [model.order.ends(prefix[prefix.ne(self.pad)].tolist(), []) for prefix in prefix_tokens]

    def check_engine(self, model: Model) -> None:
        """Raise UnsupportedError, naming it, for what the engine does not have for this model."""
        if self.options.alignment and not model.aligns:
            raise UnsupportedError("--print-alignment for this cross-attention")

    def engine_model(self) -> Model | None:
        """The model in the engine; None if PyTorch decodes."""
        options = self.options
        return self.engine_models(
            self.models, options.decode_dtype, unsupported(options), self.max_positions(), self.check_engine
        )

    def max_positions(self) -> int:
        """The largest number of words and end symbol of an output that all models have positions for."""
        models = self.models if self.reranking_model is None else [*self.models, self.reranking_model]
        return min(model.max_decoder_positions() for model in models)

    def max_lengths(self, source: Tensor) -> list[int]:
        """Maximum lengths, in words, of the outputs for sources (b, S).

        Raises:
            ValueError: if ``min_len`` exceeds one of them.
        """
        positions = self.max_positions()
        options, lengths = self.options, source.ne(self.pad).sum(dim=1).tolist()
        limits = [most_words(options, length, positions) for length in lengths]
        if options.min_len > (shortest := min(limits)):
            raise ValueError(exceeding(f"--min-len {options.min_len}", shortest))
        return limits

    def unlisted(self, source: Tensor) -> Tensor | None:
        """True for the words that outputs for sources (b, S) must not have, (b, V); None without a shortlist."""
        if self.shortlist is None:
            return None
        result = torch.ones(len(source), self.vocab, dtype=torch.bool)
        for row, tokens in zip(result, source.tolist(), strict=True):
            row[self.shortlist.of(tokens)] = False
        return result.to(source.device)

    def ngrams(self) -> NoRepeatNgrams | None:
        """The rule of ``no_repeat_ngram_size``; None without it."""
        size = self.options.no_repeat_ngram_size
        return NoRepeatNgrams(size, self.order) if size > 0 else None

    def normalized(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores (n,): sums of log-probabilities (n,), divided by the penalty of their lengths (n,) in words, the end
        symbol included, if ``normalize_scores``."""
        options = self.options
        if not options.normalize_scores:
            return scores
        return scores / length_penalty(lengths, options.len_penalty, options.length_penalty_kind)

    def hypothesis(
        self,
        words: Tensor,
        word_scores: Tensor,
        score: Tensor,
        attention: Tensor | None,
        source: Tensor,
        steps: int,
    ) -> dict[str, Any]:
        """A finished hypothesis in reading order, see :meth:`generate`; its tensors are in host memory.

        Args:
            words: in generation order, (n + 1,), in host memory; the last one is the end symbol.
            word_scores: log-probabilities of the words, (n + 1,), in host memory.
            score: score of the hypothesis, in host memory.
            attention: over the source, (n + 1, S); None without ``--print-alignment``.
            source: (S,).
            steps: decoder calls.
        """
        options, length = self.options, len(words) - 1
        order = self.order.slots_and_end(length)
        if options.deduplicate_ngram_size > 0:
            first_copies = deduplicate_ngrams(words[order[:-1]].tolist(), options.deduplicate_ngram_size)
            order = order[[*first_copies, length]]
        alignment: Tensor | list[tuple[int, int]] = torch.empty(0)
        if attention is not None:
            extract = utils.extract_hard_alignment if options.alignment == "hard" else utils.extract_soft_alignment
            attention = attention.cpu()[order]
            alignment = extract(attention.float(), source.cpu(), words[order], self.pad, self.eos)
        return {
            "tokens": words.index_select(0, order),
            "score": score,
            "positional_scores": word_scores.index_select(0, order),
            "attention": None if attention is None else attention.t(),
            "alignment": alignment,
            "steps": steps,
        }

    def _empty_hypothesis(self) -> dict[str, Any]:
        zeros = torch.zeros(1)
        return {
            "tokens": torch.tensor([self.eos]),
            "score": zeros[0],
            "positional_scores": zeros,
            "attention": None,
            "alignment": [] if self.options.alignment else torch.empty(0),
            "steps": 0,
        }


def _badness(hypothesis: dict[str, Any]) -> float:
    return -float(hypothesis["score"])


class _Search:
    """The state of one batch's search: B rows of hypotheses for each sentence that is not finished.

    Attributes:
        sentences: index in the batch of each unfinished sentence.
        source: source tokens of the unfinished sentences, (b, S).
        max_lengths: maximum lengths of their outputs, (b,).
        tokens: z start symbols and the words so far in generation order, (b·B, z + T).
        word_scores: log-probabilities of the words so far, (b·B, T).
        scores: sums of the log-probabilities, (b, B); -inf for a row that holds no hypothesis.
        unlisted: the words that their outputs must not have, (b, V); None without a shortlist.
        attention: over the source, one table (b·B, z, S) per step; empty without ``--print-alignment``.
        keep_all: True if all hypotheses that end are kept.
        candidates: k, number of continuations of each row.
    """

    def __init__(
        self,
        generator: MultiwordBeamSearch,
        net_input: dict[str, Tensor],
        sentences: list[int],
        hypotheses: list[list[dict]],
    ) -> None:
        self.generator, self.options = generator, generator.options
        self.beam, self.z = self.options.beam_size, generator.order.words_per_step
        self.hypotheses = hypotheses
        self.sentences = sentences
        source, lengths = net_input["src_tokens"], net_input["src_lengths"]
        if len(sentences) < len(source):
            source, lengths = source[sentences], lengths[sentences]
        self.source = source
        models = generator.inference_models(generator.models)
        refuse_too_large(self._needed_bytes(models), len(sentences), self.beam, source.device)
        self.decodings = [model.begin(source, lengths, self.beam) for model in models]
        limits = generator.max_lengths(source)
        self.max_lengths, self.shortest_limit = torch.tensor(limits, device=source.device), min(limits)
        rows = len(sentences) * self.beam
        self.tokens = source.new_full((rows, self.z), generator.eos)
        self.word_scores = torch.zeros(rows, 0, device=source.device)
        self.scores = torch.full((len(sentences), self.beam), -math.inf, device=source.device)
        self.scores[:, 0] = 0  # a sentence's rows are identical at first: only one may branch
        self.attention: list[Tensor] = []
        self.rules = score_rules(self.options, generator.pad, generator.eos, generator.unk)
        self.ngrams, self.unlisted = generator.ngrams(), generator.unlisted(source)
        self.keep_all = self.options.finished == "all"
        # B continuations are exact for Algorithm 1 and for greedy search, unless some may be refused.
        exact = self.ngrams is None and (self.keep_all or self.beam == 1)
        self.candidates = self.beam if exact else 2 * self.beam

    def _needed_bytes(self, models: list[InferenceModel]) -> int:
        rows, vocab = len(self.sentences) * self.beam, self.generator.vocab
        row_bytes = sum(model.row_bytes for model in models)
        return needed_bytes(rows, self.z, vocab, self.beam, len(models), models[0].logit_bytes, row_bytes)

    def run(self) -> None:
        while self.sentences:
            self._make_step()

    def _make_step(self) -> None:
        continuations = self._expand()
        if self.ngrams is not None and self.generator.order.num_directions > 1:
            self._drop_repetitions(self.ngrams, continuations)
        counts = self._finished_counts()
        update = advance(self.tokens, self.word_scores, self.scores, counts, continuations, self.keep_all)
        self._collect(update.finished)
        self.scores, rows, words, word_scores = update[:4]
        if (remaining_rows := self._keep(update.remaining)) is not None:
            rows = remaining_rows if rows is None else rows[remaining_rows]
            words, word_scores = words[remaining_rows], word_scores[remaining_rows]
        if not self.sentences:
            return
        if rows is not None:
            self._reorder(rows)
        self.tokens = torch.cat([self.tokens, words], dim=1)
        self.word_scores = torch.cat([self.word_scores, word_scores], dim=1)

    def _finished_counts(self) -> list[int]:
        """The number of finished hypotheses of each sentence."""
        return [len(self.hypotheses[sentence]) for sentence in self.sentences]

    def _keep(self, remaining: list[int]) -> Tensor | None:
        """Keep the sentences of these indices; returns the remaining rows, None if all remain, or none."""
        if len(remaining) == len(self.sentences):
            return None
        if not remaining:
            self.sentences = []
            return None
        remaining = [remaining[i] for i in row_permutation(remaining)]
        self.sentences = [self.sentences[i] for i in remaining]
        index = torch.tensor(remaining, dtype=torch.long, device=self.source.device)
        self.source, self.max_lengths, self.scores = self.source[index], self.max_lengths[index], self.scores[index]
        self.unlisted = None if self.unlisted is None else self.unlisted[index]
        return (index.unsqueeze(1) * self.beam + torch.arange(self.beam, device=index.device)).flatten()

    def _expand(self) -> Continuations:
        """The best continuations of each row."""
        generator, z = self.generator, self.z
        lprobs, attention = self._decode()
        if attention is not None:
            self.attention.append(attention)
        words = self.tokens[:, z:]
        prefixes = Prefixes(words, self.max_lengths, self.shortest_limit)
        for rule in self.rules:
            rule(lprobs, prefixes)
        combine = partial(
            combine_words, lprobs, self.candidates, generator.eos, generator.pad, self.options.words_after_end
        )
        if self.ngrams is None:
            return combine()
        # A slot has at most T + z - 1 words before it, and each ends at most one n-gram that forbids a candidate.
        return combine(partial(self.ngrams.forbidden, words), max_forbidden=words.size(1) + z)

    def _decode(self) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the next z slots, (b·B, z, V) float32, and attention over the source (b·B, z, S) or
        None."""
        options = self.options
        all_lprobs, attention = [], None
        for model, decoding in zip(self.generator.models, self.decodings, strict=True):
            logits, weights = decoding.step(self.tokens[:, -self.z :], bool(options.alignment))
            if options.alignment and weights is None:
                name = type(model.decoder).__name__
                raise ValueError(
                    f"--print-alignment: the cross-attention of {name} has no weights (--replace-unk needs them)"
                )
            if options.repetition_penalty != 1:
                logits = penalized(logits, self.tokens[:, self.z :], options.repetition_penalty)
            if options.temperature != 1:
                logits = logits / options.temperature
            if self.unlisted is not None:
                unlisted = self.unlisted.repeat_interleave(self.beam, dim=0).unsqueeze(1)
                logits = logits.masked_fill(unlisted, -math.inf)
            all_lprobs.append(log_probabilities(logits))
            if weights is not None:
                weights = weights / len(self.decodings)
                attention = weights if attention is None else attention + weights
        if len(all_lprobs) == 1:
            return all_lprobs[0], attention
        return torch.logsumexp(torch.stack(all_lprobs), dim=0) - math.log(len(all_lprobs)), attention

    def _reorder(self, rows: Tensor) -> None:
        """Apply a row permutation, which may repeat and omit rows."""
        self.tokens, self.word_scores = self.tokens.index_select(0, rows), self.word_scores.index_select(0, rows)
        self.attention = [table[rows] for table in self.attention]
        for decoding in self.decodings:
            decoding.reorder(rows)

    def _drop_repetitions(self, ngrams: NoRepeatNgrams, continuations: Continuations) -> None:
        """Set the scores of continuations to -inf that end a hypothesis with a repeated n-gram, where two directions
        meet.

        Hypotheses at the length limit are exempt, and all of a sentence that would have none: every sentence needs one.
        """
        scores, ends = continuations.scores, continuations.ends
        written, totals = self.word_scores.size(1), self.scores.flatten().unsqueeze(1) + scores
        before = scores.clone()
        for row, index in ((ends < self.z) & totals.isfinite()).nonzero().tolist():
            length = written + int(ends[row, index])
            words = torch.cat([self.tokens[row, self.z :], continuations.words[row, index]])[:length].tolist()
            if length < int(self.max_lengths[row // self.beam]) and ngrams.repeats(words):
                scores[row, index] = totals[row, index] = -math.inf
        nothing_left = ~totals.view(len(self.sentences), -1).isfinite().any(dim=1)
        for sentence in nothing_left.nonzero().squeeze(1).tolist():
            if not self.hypotheses[self.sentences[sentence]]:
                rows = slice(sentence * self.beam, (sentence + 1) * self.beam)
                scores[rows] = before[rows]

    def _collect(self, finished: FinishedHypotheses) -> None:
        """Add finished hypotheses, in reading order."""
        if not finished.rows:
            return
        options, z = self.options, self.z
        totals, lengths = torch.tensor(finished.totals), torch.tensor(finished.lengths)
        counted = lengths + 1 if options.words_after_end == "ignore" else (lengths // z + 1) * z
        scores = self.generator.normalized(totals, counted).unbind()
        for row, length, words, word_scores, score in zip(
            finished.rows, finished.lengths, finished.words, finished.word_scores, scores, strict=True
        ):
            attention = torch.cat([table[row] for table in self.attention])[: length + 1] if options.alignment else None
            index, steps = row // self.beam, length // z + 1
            hypothesis = self.generator.hypothesis(words, word_scores, score, attention, self.source[index], steps)
            self.hypotheses[self.sentences[index]].append(hypothesis)
