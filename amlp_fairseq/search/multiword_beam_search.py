"""Beam search that writes z = h·c words per decoder call (Zhang et al. 2020, Algorithm 1), as a fairseq generator."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor

from amlp_fairseq.decoding.preparation import Preparation, is_final
from amlp_fairseq.decoding.ready_model import ReadyModel
from amlp_fairseq.order import GenerationOrder
from amlp_fairseq.search.ngram_blocking import NGramBlocker
from amlp_fairseq.search.search_steps import (
    Combinations,
    combine_words,
    deduplicate_ngrams,
    forbid_end,
    force_end,
    length_penalty,
    stay_put,
)


class MultiwordBeamSearch:
    """Finds the hypotheses with the best score per length; for h = c = 1 the same as fairseq's SequenceGenerator.

    Lengths are counted in words, the end symbol included in length penalties and excluded in limits. A hypothesis is
    finished when any word of a step is the end symbol. All limits hold for each sentence by itself, so its output does
    not depend on the batch. A source without words gives an empty hypothesis.

    Args:
        models: one model, or several whose probabilities are averaged.
        tgt_dict: target dictionary.
        order: h, c and the order of generation.
        beam_size: B, hypotheses kept per sentence and returned at most.
        max_len_a: with ``max_len_b``: at most ``a·S + b`` words for S source tokens, the end symbol included.
        max_len_b: see ``max_len_a``.
        min_len: fewest words. ``z`` or more forbids the end symbol in the first step, as the authors' search does.
        normalize_scores: divide scores by the length penalty.
        len_penalty: exponent α of the length penalty.
        length_penalty_kind: one of ``search_steps.LENGTH_PENALTIES``.
        unk_penalty: subtracted from the unknown word's log-probability.
        temperature: divides the logits.
        no_repeat_ngram_size: no n-gram of this size twice in an output; 0 for no such limit.
        words_behind_end: ``ignore`` or ``count`` the log-probabilities of the words behind the end symbol in its
            step; where they are counted they also count as length.
        deduplicate_ngram_size: drop immediate repetitions of up to this many words from the outputs; 0 for none.
        alignment: None, or ``hard`` or ``soft`` as in ``--print-alignment``.
        decode_dtype: the weights' type when decoding, one of ``packed_linear.DECODE_DTYPES``; None: their own.
        cuda_graphs: capture the steps of models that are not in training, see ``captured_decoding.py``.
    """

    def __init__(
        self,
        models: list[Any],
        tgt_dict: Dictionary,
        order: GenerationOrder,
        *,
        beam_size: int = 5,
        max_len_a: float = 0.0,
        max_len_b: int = 200,
        min_len: int = 1,
        normalize_scores: bool = True,
        len_penalty: float = 1.0,
        length_penalty_kind: str = "fairseq",
        unk_penalty: float = 0.0,
        temperature: float = 1.0,
        no_repeat_ngram_size: int = 0,
        words_behind_end: str = "ignore",
        deduplicate_ngram_size: int = 0,
        alignment: str | None = None,
        decode_dtype: str | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        if beam_size < 1:
            raise ValueError(f"--beam must be at least 1, not {beam_size}")
        if temperature <= 0:
            raise ValueError(f"--temperature must be greater than 0, not {temperature}")
        self.models = models
        self.pad, self.unk, self.eos = tgt_dict.pad(), tgt_dict.unk(), tgt_dict.eos()
        self.symbols_to_strip_from_output = {self.eos}
        self.order = order
        self.beam_size = beam_size
        self.max_len_a, self.max_len_b, self.min_len = max_len_a, max_len_b, min_len
        self.normalize_scores = normalize_scores
        self.len_penalty, self.length_penalty_kind = len_penalty, length_penalty_kind
        self.unk_penalty, self.temperature = unk_penalty, temperature
        self.blocker = NGramBlocker(no_repeat_ngram_size, order) if no_repeat_ngram_size > 0 else None
        self.words_behind_end = words_behind_end
        self.deduplicate_ngram_size = deduplicate_ngram_size
        self.alignment = alignment
        self.prepare = Preparation(lambda model: ReadyModel(model, decode_dtype, cuda_graphs and is_final([model])))
        for model in models:
            model.eval()

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
            sample: batch with ``net_input.src_tokens`` (B, S) and ``src_lengths`` (B,).

        Returns:
            for each sentence its hypotheses, best first: ``tokens`` in reading order with the end symbol,
            ``score``, ``positional_scores``, ``attention`` (S, words) and ``alignment`` in the same order, ``steps``
            the number of decoder calls.

        Raises:
            ValueError: for prefixes, constraints and other arguments that this search does not know.
        """
        unknown = [
            name
            for name, value in (("prefix_tokens", prefix_tokens), ("constraints", constraints))
            if value is not None
        ] + list(kwargs)
        if unknown:
            raise ValueError(f"the multi-word beam search does not support {', '.join(unknown)}")
        source = sample["net_input"]["src_tokens"]
        hypotheses: list[list[dict[str, Any]]] = [[] for _ in source]
        has_words = (source.ne(self.pad) & source.ne(self.eos)).any(dim=1)
        for row in (~has_words).nonzero().squeeze(1).tolist():
            hypotheses[row] = [self._empty_hypothesis(source)]
        sentences = has_words.nonzero().squeeze(1)
        if sentences.numel() > 0:
            # No training could use tensors of the inference mode.
            with torch.inference_mode() if is_final(self.models) else torch.no_grad():
                _Search(self, sample["net_input"], sentences, hypotheses).run()
        for row, found in enumerate(hypotheses):
            if not found:
                raise RuntimeError(
                    f"sentence {row} of the batch has no hypothesis: the model gives no word a finite probability, "
                    "or --min-len and --no-repeat-ngram-size leave none"
                )
            found.sort(key=lambda hypothesis: -float(hypothesis["score"]))
            for hypothesis in found:  # callers may write into them, which tensors of the inference mode do not allow
                for name, value in hypothesis.items():
                    hypothesis[name] = value.clone() if isinstance(value, Tensor) else value
        return hypotheses

    def _empty_hypothesis(self, source: Tensor) -> dict[str, Any]:
        zeros = torch.zeros(1, device=source.device)
        return {
            "tokens": source.new_tensor([self.eos]),
            "score": zeros[0],
            "positional_scores": zeros,
            "attention": None,
            "alignment": [] if self.alignment else torch.empty(0),
            "steps": 0,
        }


class _Search:
    """The state of one batch's search: rows of B hypotheses for each sentence that is not finished.

    Attributes:
        sentences: index in the batch of each unfinished sentence, (b,).
        source: their source tokens, (b, S).
        tokens: z start symbols and the words so far in generation order, (b·B, z + T).
        word_scores: log-probabilities of the words so far, (b·B, T).
        scores: their sums, (b, B); -inf for a row that holds no hypothesis.
    """

    def __init__(
        self,
        options: MultiwordBeamSearch,
        net_input: dict[str, Tensor],
        sentences: Tensor,
        hypotheses: list[list[dict]],
    ) -> None:
        self.options = options
        self.hypotheses = hypotheses
        self.sentences = sentences
        self.source = source = net_input["src_tokens"][sentences]
        beam, lengths = options.beam_size, net_input["src_lengths"][sentences]
        self.decodings = [model.begin(source, lengths, beam) for model in options.prepare(options.models)]
        longest = min(model.max_decoder_positions() for model in options.models) - 1
        source_lengths = source.ne(options.pad).sum(dim=1)
        self.max_lengths = (options.max_len_a * source_lengths + options.max_len_b).long().clamp(max=longest)
        #: The least of the sentences' limits, in words.
        self.shortest_limit = int(self.max_lengths.min())
        if options.min_len > self.shortest_limit:
            raise ValueError(
                f"--min-len {options.min_len} exceeds the {self.shortest_limit} words that --max-len-a, "
                "--max-len-b and --max-target-positions allow for a sentence"
            )
        rows, z = len(sentences) * beam, options.order.words_per_step
        self.tokens = source.new_full((rows, z), options.eos)
        self.word_scores = torch.zeros(rows, 0, device=source.device)
        self.scores = torch.full((len(sentences), beam), -math.inf, device=source.device)
        self.scores[:, 0] = 0  # the rows of a sentence are the same at first: only one may branch
        self.attention: list[Tensor] = []

    def run(self) -> None:
        steps = 0
        while self.sentences.numel() > 0:
            combinations = self._expand(steps)
            steps += 1
            self._advance(combinations, steps)

    def _expand(self, steps: int) -> Combinations:
        """The best ways to continue each row."""
        options = self.options
        lprobs, attention = self._decode()
        if attention is not None:
            self.attention.append(attention)
        lprobs[..., options.pad] = -math.inf
        if options.unk_penalty:
            lprobs[..., options.unk] -= options.unk_penalty
        z = options.order.words_per_step
        if steps * z < options.min_len:
            forbid_end(lprobs, steps * z, options.min_len, options.eos)
        if steps * z + z > self.shortest_limit:
            force_end(lprobs, steps * z, self.max_lengths.repeat_interleave(options.beam_size), options.eos)
        combine = partial(
            combine_words, lprobs, 2 * options.beam_size, options.eos, options.pad, options.words_behind_end
        )
        blocker, words = options.blocker, self.tokens[:, z:]
        if blocker is None:
            return combine()
        blocker.forbid_history(lprobs, words)
        return combine(partial(blocker.forbid_within_step, words), most_forbidden=words.size(1) + z)

    def _decode(self) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the next z slots, (b·B, z, V) float32, and attention over the source (b·B, z, S)."""
        z, temperature = self.options.order.words_per_step, self.options.temperature
        all_lprobs, attention = [], None
        for model, decoding in zip(self.options.models, self.decodings, strict=True):
            logits, weights = decoding.step(self.tokens[:, -z:], bool(self.options.alignment))
            if self.options.alignment and weights is None:
                name = type(model.decoder).__name__
                raise ValueError(f"--print-alignment: the cross-attention of {name} has no weights")
            if temperature != 1:
                logits = logits / temperature
            all_lprobs.append(F.log_softmax(logits, dim=-1, dtype=torch.float32))
            if weights is not None:
                attention = weights if attention is None else attention + weights
        if len(all_lprobs) == 1:
            return all_lprobs[0], attention
        return torch.logsumexp(torch.stack(all_lprobs), dim=0) - math.log(len(all_lprobs)), attention

    def _advance(self, step: Combinations, steps: int) -> None:
        """Collect finished hypotheses, keep the best unfinished ones, drop finished sentences."""
        beam, k = self.options.beam_size, step.scores.size(1)
        totals = (self.scores.unsqueeze(2) + step.scores.view(-1, beam, k)).flatten(1)
        ended = step.ends.view(-1, beam * k) < self.options.order.words_per_step
        scores, alive = totals.masked_fill(ended, -math.inf).topk(beam, dim=1)
        going_on = scores[:, 0] > -math.inf
        # Here, once in a step, the device is waited for.
        some_ended, all_go_on = torch.stack([ended.any(), going_on.all()]).tolist()
        if some_ended:
            going_on &= self._collect(totals, ended, step, steps)
            all_go_on = bool(going_on.all())
        places = torch.arange(len(going_on), device=going_on.device)
        if not all_go_on:
            places = going_on.nonzero().squeeze(1)
            places = places[stay_put(places.tolist())]
            scores, alive, self.sentences = scores[places], alive[places], self.sentences[places]
            self.source, self.max_lengths = self.source[places], self.max_lengths[places]
        if beam > 1 and not alive.is_cuda:  # to look there would be to wait, and memory is fast
            order = alive.new_tensor([stay_put(parents) for parents in (alive // k).tolist()]).view_as(alive)
            scores, alive = scores.gather(1, order), alive.gather(1, order)
        chosen = (alive + places.unsqueeze(1) * (beam * k)).flatten()
        self.scores = scores
        if beam > 1 or not all_go_on:
            self._reorder(chosen // k)
        self.tokens = torch.cat([self.tokens, step.words.flatten(0, 1)[chosen]], dim=1)
        self.word_scores = torch.cat([self.word_scores, step.word_scores.flatten(0, 1)[chosen]], dim=1)

    def _reorder(self, rows: Tensor) -> None:
        self.tokens, self.word_scores = self.tokens[rows], self.word_scores[rows]
        self.attention = [table[rows] for table in self.attention]
        if rows.numel() > 0:
            for decoding in self.decodings:
                decoding.reorder(rows)

    def _collect(self, totals: Tensor, ended: Tensor, step: Combinations, steps: int) -> Tensor:
        """Collect the hypotheses that have finished among the candidates (b, B·k); which sentences go on, (b,)."""
        options, beam = self.options, self.options.beam_size
        if options.blocker is not None and options.order.words_per_step > 1:
            self._drop_repeating_seams(totals, ended, step, steps)
        # A hypothesis counts as finished when it is among the B best, finished or not; as in fairseq.
        best_scores, best = totals.topk(min(beam, totals.size(1)), dim=1)
        sentences, ranks = (ended.gather(1, best) & best_scores.isfinite()).nonzero().unbind(1)
        if len(sentences) > 0:
            self._finish(sentences, best[sentences, ranks], step, steps)
        unfinished = [len(self.hypotheses[sentence]) < beam for sentence in self.sentences.tolist()]
        return torch.tensor(unfinished, device=ended.device)

    def _drop_repeating_seams(self, totals: Tensor, ended: Tensor, step: Combinations, steps: int) -> None:
        """Take back, in place, hypotheses that end with an n-gram repeated where two directions meet.

        One that has reached the length limit stays, and those of a sentence that has nothing else: something must be
        returned.
        """
        blocker, beam, z = self.options.blocker, self.options.beam_size, self.options.order.words_per_step
        assert blocker is not None
        k, before = step.scores.size(1), totals.clone()
        for sentence, candidate in (ended & totals.isfinite()).nonzero().tolist():
            row, column = sentence * beam + candidate // k, candidate % k
            length = (steps - 1) * z + int(step.ends[row, column])
            words = torch.cat([self.tokens[row, z:], step.words[row, column]])[:length].tolist()
            if length < int(self.max_lengths[sentence]) and blocker.repeats(words):
                totals[sentence, candidate] = -math.inf
        for sentence in (~totals.isfinite().any(dim=1)).nonzero().squeeze(1).tolist():
            if not self.hypotheses[int(self.sentences[sentence])]:
                totals[sentence] = before[sentence]

    def _finish(self, sentences: Tensor, candidates: Tensor, step: Combinations, steps: int) -> None:
        """Add finished hypotheses, in reading order, unless their sentence has B already.

        Args:
            sentences: of the unfinished ones, (n,), in order; of the same one the best hypothesis first.
            candidates: which of the sentence's B·k, (n,).
            step: where they end.
            steps: decoder calls so far.
        """
        options, beam, z = self.options, self.options.beam_size, self.options.order.words_per_step
        k = step.scores.size(1)
        rows, columns = sentences * beam + candidates // k, candidates % k
        tokens = torch.cat([self.tokens[rows, z:], step.words[rows, columns]], dim=1)
        word_scores = torch.cat([self.word_scores[rows], step.word_scores[rows, columns]], dim=1)
        lengths, scores = (steps - 1) * z + step.ends[rows, columns], word_scores.sum(dim=1)
        if options.normalize_scores:
            counted = lengths + 1 if options.words_behind_end == "ignore" else torch.full_like(lengths, steps * z)
            scores = scores / length_penalty(counted, options.len_penalty, options.length_penalty_kind)
        places = zip(self.sentences[sentences].tolist(), rows.tolist(), lengths.tolist(), strict=True)
        for number, (sentence, row, length) in enumerate(places):
            if len(self.hypotheses[sentence]) == beam:
                continue
            recovered = options.order.recover(torch.arange(length, device=tokens.device))
            order = torch.cat([recovered, recovered.new_tensor([length])])
            if options.deduplicate_ngram_size > 0:
                kept = deduplicate_ngrams(tokens[number, recovered].tolist(), options.deduplicate_ngram_size)
                order = order[[*kept, length]]
            words, attention = tokens[number, order], None
            if options.alignment:
                attention = torch.cat([table[row] for table in self.attention])[order].t()
            self.hypotheses[sentence].append(
                {
                    "tokens": words,
                    "score": scores[number],
                    "positional_scores": word_scores[number, order],
                    "attention": attention,
                    "alignment": self._alignment(row // beam, words, attention),
                    "steps": steps,
                }
            )

    def _alignment(self, sentence: int, tokens: Tensor, attention: Tensor | None) -> Any:
        options = self.options
        if attention is None:
            return torch.empty(0)
        extract = utils.extract_hard_alignment if options.alignment == "hard" else utils.extract_soft_alignment
        return extract(attention.t().float(), self.source[sentence], tokens, options.pad, options.eos)
