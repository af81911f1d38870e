"""Decoding with non-autoregressive models: they write whole sentences, then revise them in several iterations.

Notation: docs/glossary.md.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from amlp_fairseq.decoding.inference_model_cache import InferenceModelCache, are_frozen
from amlp_fairseq.decoding.inference_nat import inference_nat
from amlp_fairseq.search.hypotheses import move
from amlp_fairseq.search.memory import refuse_too_large
from amlp_fairseq.search.reranking import Reranker


class IterativeRefinement:
    """Mask-predict (Ghazvininejad et al. 2019) and noisy parallel decoding (Gu et al. 2018), for those of fairseq's
    non-autoregressive (NAT) models that do not change a sentence's length.

    A sentence is finished after the last iteration, or as soon as no later iteration can change it: as the method
    ``converged`` of ``cmlmc_transformer`` says, or with fairseq's models when an iteration changed nothing and left no
    masks. Of a sentence's candidates the one with the best mean log-probability per word is returned, or the one that
    an autoregressive model likes best. Candidates differ in length, or are what the model's ``initialize_candidates``
    gives: those of ``fertility_transformer`` differ in the fertilities.

    Args:
        tgt_dict: target dictionary.
        max_iter: iterations after the first one, as in fairseq: 9 make 10 decoder calls.
        beam_size: candidates per sentence.
        adaptive: stop a sentence as soon as no later iteration can change it.
        retain_history: keep the input and output of every iteration.
        reranking_model: an autoregressive model that reranks them.
        decode_dtype: the weights' type when decoding, one of ``packed_linear.DECODE_DTYPES``; None: their own.
        cuda_graphs: capture decoder calls as CUDA graphs, except those of the reranking model and of models that can
            still be trained.

    Raises:
        ValueError: for a value below its minimum, naming the command line option.
    """

    def __init__(
        self,
        tgt_dict: Dictionary,
        *,
        max_iter: int = 10,
        beam_size: int = 1,
        adaptive: bool = True,
        retain_history: bool = False,
        reranking_model: Any = None,
        decode_dtype: str | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        if max_iter < 0:
            raise ValueError(f"--iter-decode-max-iter {max_iter} must be at least 0")
        if beam_size < 1:
            raise ValueError(f"--iter-decode-with-beam {beam_size} must be at least 1")
        if reranking_model is not None and beam_size < 2:
            raise ValueError("--rescore-path needs candidates: --iter-decode-with-beam 2 or more")
        self.reranking_model, self.reranker = reranking_model, Reranker(tgt_dict, decode_dtype)
        self.bos, self.pad, self.eos, self.unk = tgt_dict.bos(), tgt_dict.pad(), tgt_dict.eos(), tgt_dict.unk()
        self.vocab, self.max_iter, self.beam_size = len(tgt_dict), max_iter, beam_size
        self.adaptive, self.retain_history = adaptive, retain_history
        self.inference_models = InferenceModelCache(
            lambda model: inference_nat(model, decode_dtype, cuda_graphs and are_frozen([model]))
        )

    @torch.no_grad()
    def generate(
        self, models: list[Any], sample: dict[str, Any], prefix_tokens: None = None, constraints: None = None
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch.

        Args:
            models: several are an ensemble.
            sample: fairseq's batch with ``net_input.src_tokens`` (B, S), which begin with the start symbol, and
                ``src_lengths`` (B,).

        Returns:
            for every sentence a list of one hypothesis, a dict: ``tokens`` with the end symbol, ``score`` (mean
            log-probability of the words; that of words and end symbol where an autoregressive model has chosen),
            ``positional_scores``, ``steps`` (decoder calls), ``alignment`` and ``attention`` (empty), ``history``: with
            ``retain_history`` what the model read and wrote, in host memory, as dicts of ``tokens`` with the end
            symbol, and for what it wrote ``scores``, log-probabilities; NaN where the model did not keep them.

        Raises:
            ValueError: for prefixes, constraints, models that change a sentence's length, and batches that need
                more memory than there is.
        """
        if prefix_tokens is not None or constraints is not None:
            raise ValueError("iterative refinement does not support --prefix-size and --constraints")
        for model in models:
            model.eval()
            if not getattr(model, "allow_length_beam", False):
                together = f"; the models {' and '.join(type(each).__name__ for each in models)} cannot be combined: "
                together += "an autoregressive one chooses among the candidates of another with --rescore-path"
                raise ValueError(
                    f"{type(model).__name__} does not write sentences of fixed length; fairseq's --task "
                    "translation_lev is for such models that are not autoregressive"
                    + (together if len(models) > 1 else "")
                )
        if len(models) > 1 and not models[0].allow_ensemble:
            raise ValueError(f"{type(models[0]).__name__} does not support ensembles")
        ready = self.inference_models(models)
        if hasattr(ready[0], "enable_ensemble"):
            ready[0].enable_ensemble(ready)

        src_tokens, src_lengths = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
        finished, k = self._refine(ready[0], src_tokens, src_lengths), self.beam_size
        candidates = [finished[i : i + k] for i in range(0, len(finished), k)]
        if self.reranking_model is not None:
            self.reranker.rerank(self.reranking_model, src_tokens, candidates, torch.div)
        chosen = [max(each, key=_quality) for each in candidates]
        move(chosen, src_tokens.device)
        return [[hypothesis] for hypothesis in chosen]

    def _refine(self, model: Any, src_tokens: Tensor, src_lengths: Tensor) -> list[dict[str, Any]]:
        """Hypotheses of all candidates: those of the first sentence, those of the second, …"""
        encoder_out = model.forward_encoder([src_tokens, src_lengths])
        rows = torch.arange(len(src_tokens), device=src_tokens.device).repeat_interleave(self.beam_size)
        if hasattr(model, "initialize_candidates"):
            state = model.initialize_candidates(encoder_out, src_tokens, self.beam_size)
        else:
            state = model.initialize_output_tokens(encoder_out, src_tokens)
            if self.beam_size > 1:
                state = model.regenerate_length_beam(state, self.beam_size)
        needed = state.output_tokens.numel() * self.vocab * 4  # the probabilities of all rows, in float32
        refuse_too_large(needed, len(src_tokens), self.beam_size, src_tokens.device, "--iter-decode-with-beam")
        if self.beam_size > 1:
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, rows)
        if self.retain_history:
            state = state._replace(history=[state.output_tokens.clone()])
        scores: list[Tensor | None] = [None]  # of the history's entries, where they are outputs
        ends = state.output_tokens.ne(self.pad).sum(dim=1).sub(1).tolist()
        finished: list[dict[str, Any]] = [{} for _ in rows]
        alive = torch.arange(len(rows), device=rows.device)
        for iteration in range(self.max_iter + 1):
            before = state._replace(output_tokens=state.output_tokens.clone())  # fairseq's models write into it
            state = model.forward_decoder(
                state._replace(step=iteration, max_step=self.max_iter + 1), encoder_out, decoding_format=None
            )
            if self.retain_history:
                new: list[Tensor | None] = [None] * (len(state.history) - len(scores))
                # Stock cmlm_transformer masks at the end of an iteration, behind its output.
                masks = state.output_tokens.eq(self.unk) & state.output_scores.eq(0)
                new[-1 if hasattr(model, "converged") else 0] = state.output_scores.masked_fill(masks, torch.nan)
                scores += new
            if iteration == self.max_iter:
                done = torch.ones_like(alive, dtype=torch.bool)
            elif not self.adaptive:
                continue
            elif hasattr(model, "converged"):
                done = model.converged(before, state)
            else:
                # Stock cmlm_transformer masks at the end of an iteration: the next one will fill these masks.
                masks = state.output_tokens.eq(self.unk) & state.output_scores.eq(0)
                done = ((state.output_tokens == before.output_tokens) & ~masks).all(dim=1)
            if not done.any():
                continue
            ended, ended_scores = _rows(state, scores, done, torch.device("cpu"))
            for row, sentence in enumerate(alive[done].tolist()):
                finished[sentence] = self._hypothesis(ended, row, ends[sentence], ended_scores)
            if done.all():
                break
            kept = (~done).nonzero().squeeze(1)
            alive = alive[kept]
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, kept)
            state, scores = _rows(state, scores, kept, kept.device)
        return finished

    def _hypothesis(self, state: Any, row: int, end: int, scores: list[Any]) -> dict[str, Any]:
        """The row's words and the end symbol, which was at position ``end`` before the first iteration. ``scores`` are
        those of the history's entries, (rows, T) or None.

        Stock NAT models may overwrite it, and may write end symbols among the words.
        """
        tokens, last = state.output_tokens[row], state.output_scores[row]
        words = self._words(tokens)
        result = {
            "tokens": torch.cat([tokens[words], tokens.new_tensor([self.eos])]),
            "positional_scores": torch.cat([last[words], last[end : end + 1]]),
            "score": last[words].float().mean() if words.any() else last.new_zeros(()).float(),
            "steps": state.step + 1,
            "alignment": [],
            "attention": None,
        }
        if self.retain_history:
            result["history"] = []
            for entry, values in zip(state.history, scores, strict=True):
                kept = entry[row].ne(self.pad) & entry[row].ne(self.bos)
                known = {} if values is None else {"scores": values[row][kept]}
                result["history"].append({"tokens": entry[row][kept], **known})
        return result

    def _words(self, tokens: Tensor) -> Tensor:
        """Mask of the positions that hold neither start, end nor padding."""
        return tokens.ne(self.pad) & tokens.ne(self.bos) & tokens.ne(self.eos)


def _rows(
    state: Any, scores: list[Tensor | None], rows: Tensor, device: torch.device
) -> tuple[Any, list[Tensor | None]]:
    """Rows, given by number or by a mask, of outputs, history and its scores, on a device."""

    def taken(table: Tensor | None) -> Tensor | None:
        return None if table is None else table[rows].to(device)

    history = None if state.history is None else [taken(tokens) for tokens in state.history]
    outputs = {"output_tokens": taken(state.output_tokens), "output_scores": taken(state.output_scores)}
    return state._replace(history=history, **outputs), [taken(each) for each in scores]


def _quality(hypothesis: dict[str, Any]) -> float:
    """The key by which candidates are compared: the score; an empty one is chosen only if all are empty."""
    return float(hypothesis["score"]) if len(hypothesis["tokens"]) > 1 else -float("inf")
