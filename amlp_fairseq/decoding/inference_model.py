"""Inference models: optimised copies of trained encoder-decoder models. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from amlp_fairseq.decoding.cuda_graph_decoding import CudaGraphDecoder, CudaGraphDecoding
from amlp_fairseq.decoding.cuda_graphs import check_device
from amlp_fairseq.decoding.packed_linear import in_decode_dtype, with_packed_linears
from amlp_fairseq.decoding.prefix_tree import TreeDecoding
from amlp_fairseq.decoding.speculative_session import SpeculativeSession
from amlp_fairseq.decoding.step_decoder import INITIAL_SLOTS, Decoding, StepDecoder


class StepwiseDecoding(Protocol):
    """A session that decodes a batch: R rows, B for each sentence."""

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits of the next z words (R, z, V), given the words of the previous step (R, z), initially start symbols;
        and attention over the source (R, z, S) if ``need_attention``."""

    def reorder(self, rows: Tensor) -> None:
        """Apply a row permutation (R',) with B rows for each sentence. Sentences without rows are finished; the order
        of the unfinished ones may change."""


class InferenceModel:
    """An encoder and a decoder with copies of a model's weights, see ``packed_linear.py`` and ``step_decoder.py``.

    Decoders of other packages, and decoders with ``--retain-dropout``, are used as they are.

    Args:
        model: an autoregressive or interleaved model; it is not changed.
        decode_dtype: ``--decode-dtype``; None: the weights' type.
        cuda_graphs: ``--cuda-graphs``.

    Attributes:
        logit_bytes: bytes of a logit.
        row_bytes: bytes of a row's states in the first step; 0 for a decoder that is used as it is.

    Raises:
        ValueError: if the device, or a decoder that is used as it is, does not support one of these options.
    """

    def __init__(self, model: FairseqEncoderDecoderModel, decode_dtype: str | None, cuda_graphs: bool = False) -> None:
        if cuda_graphs:
            needed = "decoders of amlp_fairseq without --retain-dropout"
            check_device(model, CudaGraphDecoder.supports(model.decoder), needed)
        model, decode_dtype = in_decode_dtype(model, decode_dtype)
        self.model, self.decoder, self.graph_decoder = model, None, None
        if StepDecoder.supports(model.decoder):
            self.decoder = StepDecoder(model.decoder, decode_dtype)
            self.graph_decoder = CudaGraphDecoder(self.decoder) if cuda_graphs else None
        elif decode_dtype is not None:
            raise ValueError(
                f"--decode-dtype {decode_dtype} is for decoders of amlp_fairseq without --retain-dropout, not for "
                f"{type(model.decoder).__name__}"
            )
        self.encoder = with_packed_linears(model.encoder, decode_dtype)
        self.logit_bytes = next(model.parameters()).element_size()
        self.row_bytes = 0 if self.decoder is None else self.decoder.state_layout.row_bytes(INITIAL_SLOTS)

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> dict[str, list[Tensor]]:
        """The encoder's output for sources (b, S)."""
        output: dict[str, list[Tensor]] = self.encoder.forward_torchscript(
            {"src_tokens": src_tokens, "src_lengths": src_lengths}
        )
        return output

    def begin(self, src_tokens: Tensor, src_lengths: Tensor, beam: int) -> StepwiseDecoding:
        """Encode sources (b, S) and begin a session with ``beam`` rows for each."""
        encoder_out = self.encode(src_tokens, src_lengths)
        if self.graph_decoder is not None:
            return CudaGraphDecoding(self.graph_decoder, encoder_out, beam)
        if self.decoder is not None:
            return Decoding(self.decoder, encoder_out, beam)
        return _IncrementalDecoding(self.model, encoder_out, beam)

    def begin_tree(self, src_tokens: Tensor, src_lengths: Tensor) -> TreeDecoding | None:
        """Encode sources (b, S) and begin a session that reads trees of hypotheses; None for a decoder with other
        attentions than softmax attention."""
        if self.decoder is None or self.decoder.other_attention() is not None:
            return None
        return TreeDecoding(self.decoder, self.encode(src_tokens, src_lengths), beam=1)

    def begin_speculative(self, src_tokens: Tensor, src_lengths: Tensor) -> SpeculativeSession:
        """Encode sources (R, S) and begin a session that verifies drafts of their translations.

        Raises:
            ValueError: for decoders of other packages, and as ``SpeculativeSession``.
        """
        if self.decoder is None:
            raise ValueError(
                "a draft needs a decoder of amlp_fairseq without --retain-dropout, not "
                f"{type(self.model.decoder).__name__}"
            )
        return SpeculativeSession(self.decoder, self.encode(src_tokens, src_lengths))


class _IncrementalDecoding:
    """A session with fairseq's incremental decoding."""

    def __init__(self, model: FairseqEncoderDecoderModel, encoder_out: dict[str, list[Tensor]], beam: int) -> None:
        self.model = model
        self.state: dict[str, dict[str, Any]] = {}
        sentences = torch.arange(encoder_out["encoder_out"][0].size(1)).repeat_interleave(beam)
        self.encoder_out = model.encoder.reorder_encoder_out(
            encoder_out, sentences.to(encoder_out["encoder_out"][0].device)
        )
        self.tokens: Tensor | None = None

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        self.tokens = words if self.tokens is None else torch.cat([self.tokens, words], dim=1)
        logits, extra = self.model.decoder(self.tokens, encoder_out=self.encoder_out, incremental_state=self.state)
        z = words.size(1)
        return logits[:, -z:], extra["attn"][0] if need_attention else None

    def reorder(self, rows: Tensor) -> None:
        assert self.tokens is not None
        self.tokens = self.tokens[rows]
        self.model.decoder.reorder_incremental_state_scripting(self.state, rows)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, rows)
