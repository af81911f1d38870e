"""Iterative refinement: non-autoregressive models write whole sentences, then revise them in several iterations.

Notation: docs/glossary.md.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.nat import FairseqNATModel
from torch import Tensor

from amlp_fairseq.compat.internals import DecoderOut
from amlp_fairseq.decoding.inference_model_cache import InferenceModelCache, are_frozen
from amlp_fairseq.decoding.inference_nat import inference_nat
from amlp_fairseq.engine.model import ParallelModel, RefinementOptions
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.models.interfaces import CandidateModel, ConvergingModel
from amlp_fairseq.search.engine_models import EngineModels
from amlp_fairseq.search.hypotheses import move
from amlp_fairseq.search.memory_limit import refuse_too_large
from amlp_fairseq.search.reranking import Reranker


class IterativeRefinement:
    """Mask-predict (Ghazvininejad et al. 2019) and noisy parallel decoding (Gu et al. 2018), for non-autoregressive
    (NAT) models, fairseq's too, that do not change a sentence's length.

    A sentence is finished after the last iteration, or as soon as no later iteration can change it: as a
    ``ConvergingModel`` says, or with fairseq's models when an iteration changed nothing and left no masks. The
    candidate with the best mean log-probability per word is returned, by this model or by the reranking model.
    Candidates differ in length; those of a ``CandidateModel`` (``fertility_transformer``) in the
    fertilities.

    Args:
        tgt_dict: target dictionary.
        max_iter: iterations after the first one, as in fairseq: 9 make 10 decoder calls.
        beam_size: candidates per sentence.
        adaptive: stop a sentence as soon as no later iteration can change it.
        retain_history: keep the input and output of every iteration.
        reranking_model: an autoregressive model that reranks the candidates.
        decode_dtype: the weights' type when decoding, one of ``packed_linear.DECODE_DTYPES``; None: unchanged.
        cuda_graphs: capture decoder calls as CUDA graphs, except calls of the reranking model and of models that can
            still be trained.
        use_engine: on a CPU the C++ engine decodes, where it has the model and the options.
        shortlist: of the words that outputs may have; in the engine.

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
        reranking_model: FairseqEncoderDecoderModel | None = None,
        decode_dtype: str | None = None,
        cuda_graphs: bool = False,
        use_engine: bool = True,
        shortlist: Shortlist | None = None,
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
        self.adaptive, self.retain_history, self.shortlist = adaptive, retain_history, shortlist
        self.decode_dtype, self.cuda_graphs = decode_dtype, cuda_graphs
        self.engine_models = EngineModels(ParallelModel, use_engine)
        self.inference_models = InferenceModelCache(
            lambda model: inference_nat(model, decode_dtype, cuda_graphs and are_frozen([model]))
        )

    @torch.no_grad()
    def generate(
        self,
        models: list[FairseqEncoderDecoderModel],
        sample: dict[str, Any],
        prefix_tokens: None = None,
        constraints: None = None,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch.

        Args:
            models: several are an ensemble.
            sample: fairseq's batch with ``net_input.src_tokens`` (B, S), which begin with the start symbol, and
                ``src_lengths`` (B,).

        Returns:
            for every sentence a list of one hypothesis, a dict: ``tokens`` with the end symbol, ``score`` (mean
            log-probability of the words; of words and end symbol where an autoregressive model has chosen),
            ``positional_scores``, ``steps`` (decoder calls), ``alignment`` and ``attention`` (empty), ``history``: with
            ``retain_history`` the model's inputs and outputs, in host memory, as dicts of ``tokens`` with the end
            symbol, and for outputs ``scores``, log-probabilities; NaN where the model did not keep them.

        Raises:
            ValueError: for prefixes, constraints, models that change a sentence's length, and batches that need
                more memory than there is.
        """
        if prefix_tokens is not None or constraints is not None:
            raise ValueError("iterative refinement does not support --prefix-size and --constraints")
        for model in models:
            model.eval()
            if not getattr(model, "allow_length_beam", False):
                together = f"; the models {' and '.join(type(model).__name__ for model in models)} cannot be combined: "
                together += "an autoregressive one reranks the candidates of another with --rescore-path"
                raise ValueError(
                    f"{type(model).__name__} does not write sentences of fixed length; fairseq's --task "
                    "translation_lev is for such models that are not autoregressive"
                    + (together if len(models) > 1 else "")
                )
        if len(models) > 1 and not models[0].allow_ensemble:
            raise ValueError(f"{type(models[0]).__name__} does not support ensembles")
        if (model := self.engine_model(models)) is not None:
            return self._in_engine(model, sample["net_input"]["src_tokens"])
        if self.shortlist is not None:
            raise ValueError(
                "--shortlist: the engine alone has it for models that write all words at a time, and PyTorch decodes "
                "here; give --shortlist none"
            )
        inference_models = self.inference_models(models)
        if len(models) > 1:
            inference_models[0].enable_ensemble(inference_models)

        src_tokens, src_lengths = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
        finished, k = self._refine(inference_models[0], src_tokens, src_lengths), self.beam_size
        candidates = [finished[i : i + k] for i in range(0, len(finished), k)]
        if self.reranking_model is not None:
            self.reranker.rerank(self.reranking_model, src_tokens, candidates, torch.div)
        best = [max(hypotheses, key=_quality) for hypotheses in candidates]
        move(best, src_tokens.device)
        return [[hypothesis] for hypothesis in best]

    def engine_model(self, models: list[FairseqEncoderDecoderModel]) -> ParallelModel | None:
        """The model in the engine; None if PyTorch decodes."""
        unsupported = {
            "--retain-iter-history": self.retain_history,
            "--rescore-path": self.reranking_model is not None,
            "--cuda-graphs": self.cuda_graphs,
        }
        return self.engine_models(models, self.decode_dtype, unsupported)

    def refinement_options(self) -> RefinementOptions:
        """The settings of the engine."""
        return RefinementOptions(self.max_iter, self.beam_size, self.adaptive)

    def _in_engine(self, model: ParallelModel, src_tokens: Tensor) -> list[list[dict[str, Any]]]:
        """The hypotheses of sources (B, S)."""
        sources = [source[self._words(source) | source.eq(self.eos)].tolist() for source in src_tokens]
        threads = torch.get_num_threads()
        found = model.search(sources, self.refinement_options(), threads, shortlist=self.shortlist)
        if [] in found:
            raise RuntimeError(
                f"sentence {found.index([])} of the batch has no hypothesis: no word has a finite probability"
            )
        return [
            [
                {
                    "tokens": torch.tensor([*each.tokens, self.eos]),
                    "positional_scores": torch.tensor(each.token_scores),
                    "score": torch.tensor(each.score),
                    "steps": each.steps,
                    "alignment": [],
                    "attention": None,
                }
                for each in hypotheses
            ]
            for hypotheses in found
        ]

    def _refine(self, model: FairseqNATModel, src_tokens: Tensor, src_lengths: Tensor) -> list[dict[str, Any]]:
        """The hypotheses of all candidates, in the order of the sentences."""
        encoder_out = model.forward_encoder([src_tokens, src_lengths])
        rows = torch.arange(len(src_tokens), device=src_tokens.device).repeat_interleave(self.beam_size)
        if isinstance(model, CandidateModel):
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
        scores: list[Tensor | None] = [None]  # of each entry of the history; None for inputs
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
                # fairseq's cmlm_transformer masks at the end of an iteration, after its output.
                masks = state.output_tokens.eq(self.unk) & state.output_scores.eq(0)
                new[-1 if isinstance(model, ConvergingModel) else 0] = state.output_scores.masked_fill(masks, torch.nan)
                scores += new
            if iteration == self.max_iter:
                done = torch.ones_like(alive, dtype=torch.bool)
            elif not self.adaptive:
                continue
            elif isinstance(model, ConvergingModel):
                done = model.converged(before, state)
            else:
                # fairseq's cmlm_transformer masks at the end of an iteration; the next one fills these masks.
                masks = state.output_tokens.eq(self.unk) & state.output_scores.eq(0)
                done = ((state.output_tokens == before.output_tokens) & ~masks).all(dim=1)
            if not done.any():
                continue
            finished_state, finished_scores = _rows(state, scores, done, torch.device("cpu"))
            for row, candidate in enumerate(alive[done].tolist()):
                finished[candidate] = self._hypothesis(finished_state, row, ends[candidate], finished_scores)
            if done.all():
                break
            rest = (~done).nonzero().squeeze(1)
            alive = alive[rest]
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, rest)
            state, scores = _rows(state, scores, rest, rest.device)
        return finished

    def _hypothesis(self, state: DecoderOut, row: int, end: int, scores: list[Tensor | None]) -> dict[str, Any]:
        """The row's words and the end symbol, which was at position ``end`` before the first iteration: fairseq's NAT
        models may overwrite the end symbol, and may write end symbols among the words.

        Args:
            state: the last output of the finished rows.
            row: index of the row.
            end: see above.
            scores: log-probabilities (rows, T) of the history's entries, or None.
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
                text = entry[row].ne(self.pad) & entry[row].ne(self.bos)
                entry_scores = {} if values is None else {"scores": values[row][text]}
                result["history"].append({"tokens": entry[row][text], **entry_scores})
        return result

    def _words(self, tokens: Tensor) -> Tensor:
        """A mask of the positions that hold neither start, end nor padding."""
        return tokens.ne(self.pad) & tokens.ne(self.bos) & tokens.ne(self.eos)


def _rows(
    state: DecoderOut, scores: list[Tensor | None], rows: Tensor, device: torch.device
) -> tuple[DecoderOut, list[Tensor | None]]:
    """Some rows, by their indices or as a mask, of outputs, history and its scores, moved to a device."""

    def select(table: Tensor | None) -> Tensor | None:
        return None if table is None else table[rows].to(device)

    history = None if state.history is None else [select(tokens) for tokens in state.history]
    outputs = {"output_tokens": select(state.output_tokens), "output_scores": select(state.output_scores)}
    return state._replace(history=history, **outputs), [select(table) for table in scores]


def _quality(hypothesis: dict[str, Any]) -> float:
    """The score, by which candidates are compared; -inf for an empty candidate, chosen only if all are empty."""
    return float(hypothesis["score"]) if len(hypothesis["tokens"]) > 1 else -float("inf")
