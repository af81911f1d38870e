"""Beam search that writes z = h·c words per decoder call (Zhang et al. 2020, Algorithm 1), as a fairseq generator.

Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor

from amlp_fairseq.decoding.ready_cache import ReadyCache, is_final
from amlp_fairseq.decoding.ready_model import ReadyModel
from amlp_fairseq.decoding.step_decoder import Decoding
from amlp_fairseq.order import GenerationOrder
from amlp_fairseq.search.memory import needed_bytes, refuse_too_large
from amlp_fairseq.search.no_repeat_ngrams import NoRepeatNgrams
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.rescoring import Rescorer
from amlp_fairseq.search.rules import LeastWords, MostWords, NoPadding, Prefixes, score_rules
from amlp_fairseq.search.search_steps import (
    Combinations,
    combine_words,
    compiled,
    deduplicate_ngrams,
    length_penalty,
    log_probabilities,
    overwrites_logits,
    row_permutation,
)

#: The rules that hold where several steps are made in one call; with another one there is a call for each.
RULES_OF_STEPS_AT_ONCE = {NoPadding, LeastWords, MostWords}


class MultiwordBeamSearch:
    """Finds the hypotheses with the best score per length; for h = c = 1 the same as fairseq's SequenceGenerator.

    Lengths are counted in words; length penalties count the end symbol, limits do not. A hypothesis is finished when
    any word of a step is the end symbol. Each sentence has its own limits, so its output does not depend on the batch.
    A source without words gives an empty hypothesis.

    Args:
        models: one model, or several whose probabilities are averaged.
        tgt_dict: target dictionary.
        order: h, c and the order of generation.
        options: all but ``decode_dtype`` and ``cuda_graphs`` may be replaced between batches.
        chooser: an autoregressive model whose scores decide which of the finished hypotheses is the best.
    """

    def __init__(
        self,
        models: list[Any],
        tgt_dict: Dictionary,
        order: GenerationOrder,
        options: SearchOptions,
        chooser: Any = None,
    ) -> None:
        self.models, self.chooser = models, chooser
        self.rescorer = Rescorer(tgt_dict, options.decode_dtype)
        self.pad, self.unk, self.eos = tgt_dict.pad(), tgt_dict.unk(), tgt_dict.eos()
        self.vocab = len(tgt_dict)
        self.symbols_to_strip_from_output = {self.eos}
        self.order = order
        self.options = options
        self.ready_models = ReadyCache(self.make_ready)

    def make_ready(self, model: Any) -> ReadyModel:
        """A model made ready to translate, with the present options."""
        options = self.options
        return ReadyModel(model, options.decode_dtype, options.cuda_graphs and is_final([model]))

    @torch.no_grad()
    def generate(
        self,
        models: Any,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        **kwargs: Any,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch.

        Args:
            models: ignored, as in fairseq's SequenceGenerator: those given at construction are used.
            sample: batch with ``net_input.src_tokens`` (sentences, S) and ``src_lengths`` (sentences,).

        Returns:
            for each sentence at most B hypotheses, best first, as dicts: ``tokens`` (n,) in reading order with the end
            symbol, ``score``, ``positional_scores`` (n,), ``attention`` (S, n) or None, ``alignment``, and ``steps``,
            the number of decoder calls.

        Raises:
            ValueError: for prefixes, constraints and unknown arguments, if ``min_len`` exceeds a sentence's limit, and
                if the search would need more memory than there is.
            RuntimeError: if a sentence has no hypothesis.
        """
        unknown = [
            name
            for name, value in (("prefix_tokens", prefix_tokens), ("constraints", constraints))
            if value is not None
        ] + list(kwargs)
        if unknown:
            raise ValueError(f"the multi-word beam search does not support {', '.join(unknown)}")
        for model in self.models:
            if model.training:
                model.eval()
        source = sample["net_input"]["src_tokens"]
        hypotheses: list[list[dict[str, Any]]] = [[] for _ in source]
        has_words = (source.ne(self.pad) & source.ne(self.eos)).any(dim=1)
        for row in (~has_words).nonzero().squeeze(1).tolist():
            hypotheses[row] = [self._empty_hypothesis(source)]
        sentences = has_words.nonzero().squeeze(1)
        if sentences.numel() > 0:
            # Tensors made in inference mode could not be used in training.
            with torch.inference_mode() if is_final(self.models) else torch.no_grad():
                self.search(sample["net_input"], sentences, hypotheses)
                rows = [row for row in sentences.tolist() if hypotheses[row]]
                if self.chooser is not None and rows:
                    several = [hypotheses[row] for row in rows]
                    self.rescorer.rescore(self.chooser, source[rows], several, self.normalized)
        for row, found in enumerate(hypotheses):
            if not found:
                raise RuntimeError(
                    f"sentence {row} of the batch has no hypothesis: the model gives no word a finite probability, "
                    "or --min-len and --no-repeat-ngram-size leave none"
                )
            found.sort(key=lambda hypothesis: -float(hypothesis["score"]))
            for hypothesis in found:  # inference tensors could not be changed in place
                for name, value in hypothesis.items():
                    hypothesis[name] = value.clone() if isinstance(value, Tensor) else value
        return hypotheses

    def search(self, net_input: dict[str, Tensor], sentences: Tensor, hypotheses: list[list[dict[str, Any]]]) -> None:
        """Translate some of a batch's sentences.

        Args:
            net_input: the batch's.
            sentences: their indices in the batch, (b,).
            hypotheses: of all sentences of the batch; those found are added.
        """
        _Search(self, net_input, sentences, hypotheses).run()

    def max_lengths(self, source: Tensor) -> Tensor:
        """The most words that the outputs for sources (b, S) may have, (b,).

        Raises:
            ValueError: if ``min_len`` exceeds it for one of them.
        """
        models = self.models if self.chooser is None else [*self.models, self.chooser]
        longest = min(model.max_decoder_positions() for model in models) - 1
        limits = self.options.max_len_a * source.ne(self.pad).sum(dim=1) + self.options.max_len_b
        limits = limits.long().clamp(max=longest)
        if self.options.min_len > (shortest := int(limits.min())):
            raise ValueError(
                f"--min-len {self.options.min_len} exceeds the {shortest} words that --max-len-a, --max-len-b and "
                "--max-target-positions allow for a sentence"
            )
        return limits

    def ngrams(self) -> NoRepeatNgrams | None:
        """What ``no_repeat_ngram_size`` forbids."""
        size = self.options.no_repeat_ngram_size
        return NoRepeatNgrams(size, self.order) if size > 0 else None

    def normalized(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Sums of log-probabilities divided by the length penalty of these lengths, if ``normalize_scores``."""
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
        """A finished hypothesis in reading order, see :meth:`generate`.

        Args:
            words: in generation order, (n + 1,); the last one is the end symbol.
            word_scores: their log-probabilities, (n + 1,).
            score: of the hypothesis.
            attention: over the source, (n + 1, S); None without ``--print-alignment``.
            source: (S,).
            steps: decoder calls.
        """
        options, length = self.options, len(words) - 1
        recovered = self.order.slots(length).to(words.device)
        if options.deduplicate_ngram_size > 0:
            kept = deduplicate_ngrams(words[recovered].tolist(), options.deduplicate_ngram_size)
            recovered = recovered[kept]
        order = torch.cat([recovered, recovered.new_tensor([length])])
        alignment: Any = torch.empty(0)
        if attention is not None:
            extract = utils.extract_hard_alignment if options.alignment == "hard" else utils.extract_soft_alignment
            attention = attention[order]
            alignment = extract(attention.float(), source, words[order], self.pad, self.eos)
        return {
            "tokens": words[order],
            "score": score,
            "positional_scores": word_scores[order],
            "attention": None if attention is None else attention.t(),
            "alignment": alignment,
            "steps": steps,
        }

    def _empty_hypothesis(self, source: Tensor) -> dict[str, Any]:
        zeros = torch.zeros(1, device=source.device)
        return {
            "tokens": source.new_tensor([self.eos]),
            "score": zeros[0],
            "positional_scores": zeros,
            "attention": None,
            "alignment": [] if self.options.alignment else torch.empty(0),
            "steps": 0,
        }


class _Search:
    """The state of one batch's search: B rows of hypotheses for each sentence that is not finished.

    Attributes:
        sentences: index in the batch of each unfinished sentence, (b,).
        source: their source tokens, (b, S).
        max_lengths: the most words that their outputs may have, (b,).
        tokens: z start symbols and the words so far in generation order, (b·B, z + T).
        word_scores: log-probabilities of the words so far, (b·B, T).
        scores: their sums, (b, B); -inf for a row that holds no hypothesis.
        attention: over the source, one table (b·B, z, S) per step; empty without ``--print-alignment``.
        candidates: k, ways to continue each row that are looked at.
        compiled: whether a step's words are chosen in C++.
        at_once: the decoding, if it makes several steps in one call.
    """

    def __init__(
        self,
        generator: MultiwordBeamSearch,
        net_input: dict[str, Tensor],
        sentences: Tensor,
        hypotheses: list[list[dict]],
    ) -> None:
        self.generator, self.options = generator, generator.options
        self.beam, self.z = self.options.beam_size, generator.order.words_per_step
        self.hypotheses = hypotheses
        self.sentences = sentences
        self.source = source = net_input["src_tokens"][sentences]
        lengths = net_input["src_lengths"][sentences]
        models = generator.ready_models(generator.models)
        self.compiled = compiled(source.device, self.options.no_repeat_ngram_size > 0)
        refuse_too_large(self._needed_bytes(models), len(sentences), self.beam, source.device)
        self.decodings = [model.begin(source, lengths, self.beam) for model in models]
        self.max_lengths = generator.max_lengths(source)
        self.shortest_limit = int(self.max_lengths.min())
        rows = len(sentences) * self.beam
        self.tokens = source.new_full((rows, self.z), generator.eos)
        self.word_scores = torch.zeros(rows, 0, device=source.device)
        self.scores = torch.full((len(sentences), self.beam), -math.inf, device=source.device)
        self.scores[:, 0] = 0  # a sentence's rows are identical at first: only one may branch
        self.attention: list[Tensor] = []
        self.rules = score_rules(self.options, generator.pad, generator.eos, generator.unk)
        self.ngrams = generator.ngrams()
        # Greedy search goes on with the best one, or ends with it, unless that may be refused.
        self.candidates = 1 if self.beam == 1 and self.ngrams is None else 2 * self.beam
        self.at_once = self._searches_at_once()

    def _needed_bytes(self, models: list[ReadyModel]) -> int:
        rows, itemsize = len(self.sentences) * self.beam, models[0].logit_bytes
        if overwrites_logits(self.source.device, itemsize):
            itemsize = 0
        row_bytes = sum(model.row_bytes for model in models)
        vocab = self.generator.vocab
        return needed_bytes(rows, self.z, vocab, self.beam, len(models), itemsize, row_bytes, self.compiled)

    def _searches_at_once(self) -> Decoding | None:
        decoding, options = self.decodings[0], self.options
        if not self.compiled or len(self.decodings) > 1 or not isinstance(decoding, Decoding):
            return None
        plain = not options.alignment and options.temperature == 1
        obeyed = all(type(rule) in RULES_OF_STEPS_AT_ONCE for rule in self.rules)
        return decoding if plain and obeyed and decoding.decoder.compiled is not None else None

    def run(self) -> None:
        steps = 0
        while self.sentences.numel() > 0:
            combinations, made = self._make_steps()
            steps += made
            if combinations is not None:
                self._advance(combinations, steps)

    def _make_steps(self) -> tuple[Combinations | None, int]:
        """Make one step, or several in one call for as long as no output can reach its limit.

        Returns the ways to continue the hypotheses in the last one, None if all of the best of them have gone on; and
        how many were made.
        """
        generator, options = self.generator, self.options
        most = (self.shortest_limit + self.z - self.tokens.size(1)) // self.z
        if self.at_once is None or most <= 0:
            step = self._expand()
            return (None if self.compiled and self._continue_all(step) else step), 1
        self.tokens, self.word_scores, self.scores, made, ways = self.at_once.search(
            *(self.tokens, self.word_scores, self.scores, most, self.candidates, generator.eos, generator.pad),
            *(options.words_behind_end == "ignore", options.min_len),
        )
        return Combinations(*ways) if ways else None, made

    def _continue_all(self, step: Combinations) -> bool:
        """Go on with the best hypotheses if none of them ends; returns whether it is so."""
        scores, rows, words, word_scores, all_continue = torch.ops.amlp_fairseq.continue_all(
            self.scores, step.scores, step.ends, step.words, step.word_scores
        )
        if all_continue:
            self._go_on(scores, rows if self.beam > 1 else None, words, word_scores)
        return bool(all_continue)

    def _expand(self) -> Combinations:
        """The best ways to continue each row."""
        generator, z = self.generator, self.z
        lprobs, attention = self._decode()
        if attention is not None:
            self.attention.append(attention)
        words = self.tokens[:, z:]
        prefixes = Prefixes(words, self.max_lengths, self.shortest_limit)
        for rule in self.rules:
            rule(lprobs, prefixes)
        combine = partial(
            combine_words, lprobs, self.candidates, generator.eos, generator.pad, self.options.words_behind_end
        )
        if self.ngrams is None:
            return combine()
        # A slot has at most T + z - 1 words before it, and each ends at most one n-gram that forbids a candidate.
        return combine(partial(self.ngrams.forbidden, words), most_forbidden=words.size(1) + z)

    def _decode(self) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the next z slots, (b·B, z, V) float32, and attention over the source (b·B, z, S)."""
        options = self.options
        all_lprobs, attention = [], None
        for model, decoding in zip(self.generator.models, self.decodings, strict=True):
            logits, weights = decoding.step(self.tokens[:, -self.z :], bool(options.alignment))
            if options.alignment and weights is None:
                name = type(model.decoder).__name__
                raise ValueError(f"--print-alignment: the cross-attention of {name} has no weights")
            if options.temperature != 1:
                logits = logits / options.temperature
            all_lprobs.append(log_probabilities(logits))
            if weights is not None:
                attention = weights if attention is None else attention + weights
        if len(all_lprobs) == 1:
            return all_lprobs[0], attention
        return torch.logsumexp(torch.stack(all_lprobs), dim=0) - math.log(len(all_lprobs)), attention

    def _advance(self, step: Combinations, steps: int) -> None:
        """Collect finished hypotheses, keep the best unfinished ones, drop finished sentences.

        Args:
            step: the ways to continue each row; of a compiled one some of the best end.
            steps: decoder calls so far.
        """
        beam, k = self.beam, step.scores.size(1)
        totals = (self.scores.unsqueeze(2) + step.scores.view(-1, beam, k)).flatten(1)
        ended = step.ends.view(-1, beam * k) < self.z
        if not self.compiled:
            # Here or below is the only host-device sync per step, unless one of the best candidates ends.
            if beam * k == 1 and ((totals > -math.inf) & ~ended).all():  # greedy search: each row goes on with its word
                self._go_on(totals, None, step.words.squeeze(1), step.word_scores.squeeze(1))
                return
            scores, best = totals.topk(beam, dim=1)
        kept = torch.arange(len(totals), device=totals.device)
        if self.compiled or not ((scores > -math.inf) & ~ended.gather(1, best)).all():
            scores, best = totals.masked_fill(ended, -math.inf).topk(beam, dim=1)
            able, unfinished = (scores[:, 0] > -math.inf).tolist(), self._collect(totals, ended, step, steps)
            remaining = [sentence for sentence in range(len(able)) if able[sentence] and unfinished[sentence]]
            if not remaining:
                self.sentences = self.sentences[:0]
                return
            if len(remaining) < len(able):
                kept = kept.new_tensor([remaining[i] for i in row_permutation(remaining)])
                scores, best, self.sentences = scores[kept], best[kept], self.sentences[kept]
                self.source, self.max_lengths = self.source[kept], self.max_lengths[kept]
        if beam > 1 and not best.is_cuda:  # on a GPU the sync would cost more than the copies it saves
            order = best.new_tensor([row_permutation(parents) for parents in (best // k).tolist()]).view_as(best)
            scores, best = scores.gather(1, order), best.gather(1, order)
        chosen = (best + kept.unsqueeze(1) * (beam * k)).flatten()
        rows = chosen // k if beam > 1 or len(chosen) < len(self.tokens) else None
        words, word_scores = (table.flatten(0, 1).index_select(0, chosen) for table in (step.words, step.word_scores))
        self._go_on(scores, rows, words, word_scores)

    def _go_on(self, scores: Tensor, rows: Tensor | None, words: Tensor, word_scores: Tensor) -> None:
        """Continue hypotheses.

        Args:
            scores: their scores, (b, B).
            rows: which row each continues, (b·B,); None if every row continues itself.
            words: the step's words, (b·B, z).
            word_scores: their log-probabilities.
        """
        self.scores = scores
        if rows is not None:
            self._reorder(rows)
        self.tokens = torch.cat([self.tokens, words], dim=1)
        self.word_scores = torch.cat([self.word_scores, word_scores], dim=1)

    def _reorder(self, rows: Tensor) -> None:
        """Apply a row permutation; it may repeat rows and leave some out."""
        self.tokens, self.word_scores = self.tokens.index_select(0, rows), self.word_scores.index_select(0, rows)
        self.attention = [table[rows] for table in self.attention]
        if rows.numel() > 0:
            for decoding in self.decodings:
                decoding.reorder(rows)

    def _collect(self, totals: Tensor, ended: Tensor, step: Combinations, steps: int) -> list[bool]:
        """Collect the hypotheses that end, of the candidates (b, B·k); returns which sentences are unfinished."""
        if self.ngrams is not None and self.generator.order.num_directions > 1:
            self._drop_repetitions(self.ngrams, totals, ended, step, steps)
        # A hypothesis that ends counts only if it is among the B best candidates, ended or not; as in fairseq.
        best_scores, best = totals.topk(min(self.beam, totals.size(1)), dim=1)
        sentences, ranks = (ended.gather(1, best) & best_scores.isfinite()).nonzero().unbind(1)
        if len(sentences) > 0:
            self._finish(sentences, best[sentences, ranks], step, steps)
        return [len(self.hypotheses[sentence]) < self.beam for sentence in self.sentences.tolist()]

    def _drop_repetitions(
        self, ngrams: NoRepeatNgrams, totals: Tensor, ended: Tensor, step: Combinations, steps: int
    ) -> None:
        """Set ``totals`` to -inf for hypotheses that end and repeat an n-gram, which is where two directions meet.

        A hypothesis at the length limit stays, and so do those of a sentence that has nothing else: something must be
        returned.
        """
        k, before = step.scores.size(1), totals.clone()
        for sentence, candidate in (ended & totals.isfinite()).nonzero().tolist():
            row, column = sentence * self.beam + candidate // k, candidate % k
            length = (steps - 1) * self.z + int(step.ends[row, column])
            words = torch.cat([self.tokens[row, self.z :], step.words[row, column]])[:length].tolist()
            if length < int(self.max_lengths[sentence]) and ngrams.repeats(words):
                totals[sentence, candidate] = -math.inf
        for sentence in (~totals.isfinite().any(dim=1)).nonzero().squeeze(1).tolist():
            if not self.hypotheses[int(self.sentences[sentence])]:
                totals[sentence] = before[sentence]

    def _finish(self, sentences: Tensor, candidates: Tensor, step: Combinations, steps: int) -> None:
        """Add finished hypotheses, in reading order, unless their sentence has B already.

        Args:
            sentences: indices into the unfinished sentences, (n,), ascending; of each one the best hypothesis first.
            candidates: indices into the sentence's B·k candidates, (n,).
            step: the step in which they end.
            steps: decoder calls so far.
        """
        options, z, k = self.options, self.z, step.scores.size(1)
        rows, columns = sentences * self.beam + candidates // k, candidates % k
        words = torch.cat([self.tokens[rows, z:], step.words[rows, columns]], dim=1)
        word_scores = torch.cat([self.word_scores[rows], step.word_scores[rows, columns]], dim=1)
        lengths, scores = (steps - 1) * z + step.ends[rows, columns], word_scores.sum(dim=1)
        counted = lengths + 1 if options.words_behind_end == "ignore" else torch.full_like(lengths, steps * z)
        scores = self.generator.normalized(scores, counted)
        finished = zip(self.sentences[sentences].tolist(), rows.tolist(), lengths.tolist(), strict=True)
        for number, (sentence, row, length) in enumerate(finished):
            if len(self.hypotheses[sentence]) == self.beam:
                continue
            written, attention = slice(length + 1), None
            if options.alignment:
                attention = torch.cat([table[row] for table in self.attention])[written]
            self.hypotheses[sentence].append(
                self.generator.hypothesis(
                    words[number, written],
                    word_scores[number, written],
                    scores[number],
                    attention,
                    self.source[row // self.beam],
                    steps,
                )
            )
