"""Reranks hypotheses with an autoregressive model (noisy parallel decoding: Gu et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.decoding.inference_model_cache import InferenceModelCache
from amlp_fairseq.decoding.inference_nat import inference_nat
from amlp_fairseq.decoding.prefix_tree import PrefixTree, TreeDecoding
from amlp_fairseq.decoding.step_decoder import StepDecoder
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.model import Model as EngineModel
from amlp_fairseq.engine.model import SearchOptions as EngineOptions
from amlp_fairseq.search.engine_models import EngineModels
from amlp_fairseq.search.search_steps import log_probabilities

#: Maximum number of words, padding included, whose probabilities are in memory at a time; one sentence may have more.
MAX_WORDS = 2048

#: fairseq's models with other decoders than the plugin's are packed, but keep their classes.
RerankingModel: TypeAlias = InferenceModel | FairseqEncoderDecoderModel


class Reranker:
    """Scores hypotheses in one decoder call.

    Args:
        tgt_dict: target dictionary.
        decode_dtype: the weights' type, one of ``packed_linear.DECODE_DTYPES``; None: unchanged.
        use_engine: on a CPU the C++ engine scores, where it has the model.
    """

    def __init__(self, tgt_dict: Dictionary, decode_dtype: str | None = None, use_engine: bool = False) -> None:
        self.bos, self.pad, self.eos = tgt_dict.bos(), tgt_dict.pad(), tgt_dict.eos()
        self.decode_dtype = decode_dtype
        self.inference_models = InferenceModelCache(self.prepare_for_inference)
        self.engine_models = EngineModels(EngineModel, use_engine, "reranks")

    def prepare_for_inference(self, model: FairseqEncoderDecoderModel) -> RerankingModel:
        """The inference model of a model."""
        if StepDecoder.supports(model.decoder):
            return InferenceModel(model, self.decode_dtype)
        return inference_nat(model, self.decode_dtype)

    def rerank(
        self,
        model: FairseqEncoderDecoderModel,
        src_tokens: Tensor,
        hypotheses: list[list[dict[str, Any]]],
        normalized: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """Replace the scores of hypotheses by an autoregressive model's, in one call; ``steps`` do not count it.

        Args:
            model: the autoregressive model.
            src_tokens: sources with words, (b, S). Start symbols become padding: the model was trained without them.
            hypotheses: one or more for each source, with ``tokens`` that end with the end symbol; scores are on the
                device of the tokens.
            normalized: maps sums of log-probabilities (n,) and lengths (n,), end symbols included, to scores (n,).
        """
        if (engine := self.engine_models([model], self.decode_dtype, check=_check_engine)) is not None:
            self._rerank_in_engine(engine, src_tokens, hypotheses, normalized)
            return
        (inference_model,) = self.inference_models([model])
        src_tokens = src_tokens.masked_fill(src_tokens.eq(self.bos), self.pad)
        beam = max(map(len, hypotheses))
        longest = max(len(hypothesis["tokens"]) for of_source in hypotheses for hypothesis in of_source)
        batch_size = max(MAX_WORDS // (longest * beam), 1)
        for first in range(0, len(hypotheses), batch_size):
            sources, batch = src_tokens[first : first + batch_size], hypotheses[first : first + batch_size]
            rows = [of_source[min(i, len(of_source) - 1)]["tokens"] for of_source in batch for i in range(beam)]
            texts = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad)
            lprobs = self._lprobs(inference_model, sources, texts.to(sources.device), beam).to(texts.device)
            scores = normalized(lprobs.sum(dim=1), texts.ne(self.pad).sum(dim=1))
            for source, of_source in enumerate(batch):
                for row, hypothesis in enumerate(of_source, source * beam):
                    hypothesis["positional_scores"] = lprobs[row, : len(hypothesis["tokens"])]
                    hypothesis["score"] = scores[row]

    def _rerank_in_engine(
        self,
        model: EngineModel,
        src_tokens: Tensor,
        hypotheses: list[list[dict[str, Any]]],
        normalized: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """As :meth:`rerank`."""
        sources = [source[source.ne(self.pad)].tolist() for source in src_tokens]
        texts = [[hypothesis["tokens"].tolist()[:-1] for hypothesis in of_source] for of_source in hypotheses]
        found = model.score(sources, texts, EngineOptions(), torch.get_num_threads())
        for of_source, scored in zip(hypotheses, found, strict=True):
            for hypothesis, each in zip(of_source, scored, strict=True):
                scores = hypothesis["positional_scores"] = torch.tensor(each.token_scores)
                hypothesis["score"] = normalized(scores.sum().unsqueeze(0), torch.tensor([len(scores)]))[0]

    def _lprobs(self, model: RerankingModel, src_tokens: Tensor, targets: Tensor, beam: int) -> Tensor:
        """Log-probabilities of targets (b·B, T) of sources (b, S), 0 for padding."""
        src_lengths = src_tokens.ne(self.pad).sum(dim=1)
        decoding = model.begin_tree(src_tokens, src_lengths) if isinstance(model, InferenceModel) else None
        if decoding is None:
            lprobs = self._lprobs_by_row(model, src_tokens, src_lengths, targets, beam)
        else:
            lprobs = self._lprobs_by_prefix(decoding, targets, beam)
        return lprobs.masked_fill(targets.eq(self.pad), 0)

    def _lprobs_by_prefix(self, decoding: TreeDecoding, targets: Tensor, beam: int) -> Tensor:
        """Log-probabilities of targets (b·B, T), by reading each prefix that hypotheses of a sentence share once."""
        tree = PrefixTree(targets, beam, self.eos, self.pad)
        lprobs = log_probabilities(decoding.read(tree))
        sentences = torch.arange(len(targets), device=targets.device).unsqueeze(1) // beam
        return lprobs[sentences, tree.nodes, targets]

    def _lprobs_by_row(
        self, model: RerankingModel, src_tokens: Tensor, src_lengths: Tensor, targets: Tensor, beam: int
    ) -> Tensor:
        """Log-probabilities of targets (b·B, T), by reading every hypothesis."""
        inputs = targets.roll(1, dims=1)
        inputs[:, 0] = self.eos
        if isinstance(model, InferenceModel):
            logits, _ = model.begin(src_tokens, src_lengths, beam).step(inputs)
        else:
            encoder_out = model.encoder(src_tokens, src_lengths=src_lengths)
            rows = torch.arange(len(src_tokens), device=src_tokens.device).repeat_interleave(beam)
            logits, _ = model.decoder(inputs, encoder_out=model.encoder.reorder_encoder_out(encoder_out, rows))
        return log_probabilities(logits).gather(2, targets.unsqueeze(2)).squeeze(2)


def _check_engine(model: EngineModel) -> None:
    if not model.takes_words_back:
        raise UnsupportedError("reranking with this model")
