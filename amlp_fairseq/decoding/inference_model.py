"""A trained encoder-decoder model made ready to translate. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from amlp_fairseq.decoding.cuda_graph_decoding import CudaGraphDecoder, CudaGraphDecoding
from amlp_fairseq.decoding.cuda_graphs import check_device
from amlp_fairseq.decoding.inference_encoder import inference_encoder
from amlp_fairseq.decoding.packed_linear import in_decode_dtype
from amlp_fairseq.decoding.prefix_tree import TreeDecoding
from amlp_fairseq.decoding.speculative_session import SpeculativeSession
from amlp_fairseq.decoding.step_decoder import SLOTS, Decoding, StepDecoder


class StepwiseDecoding(Protocol):
    """A session: a batch in the middle of decoding, R rows, B for each of its sentences."""

    def step(self, words: Tensor, need_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits of the next z words (R, z, V), given those of the previous step (R, z), at first start symbols; and
        attention over the source (R, z, S) if ``need_attention``."""

    def reorder(self, rows: Tensor) -> None:
        """Apply a row permutation (R',) with B rows for each sentence. Sentences without rows are finished; then the
        order of the others may change."""


class InferenceModel:
    """Encoder and decoder with copies of their present weights, see ``packed_linear.py`` and ``step_decoder.py``.

    Decoders that are not the plugin's, and those with ``--retain-dropout``, are used as they are.

    Args:
        model: an autoregressive or interleaved model; it is not changed.
        decode_dtype: ``--decode-dtype``; None: the weights' own.
        cuda_graphs: ``--cuda-graphs``.

    Attributes:
        logit_bytes: size of one.
        row_bytes: size of a row's states in the first step; 0 for a decoder that is used as it is.

    Raises:
        ValueError: if the device, or a decoder that is used as it is, does not support one of these options.
    """

    def __init__(self, model: Any, decode_dtype: str | None, cuda_graphs: bool = False) -> None:
        if cuda_graphs:
            needed = "decoders of amlp_fairseq without --retain-dropout"
            check_device(model, CudaGraphDecoder.supports(model.decoder), needed)
        model, decode_dtype = in_decode_dtype(model, decode_dtype)
        self.model, self.decoder, self.captured = model, None, None
        if StepDecoder.supports(model.decoder):
            self.decoder = StepDecoder(model.decoder, decode_dtype)
            self.captured = CudaGraphDecoder(self.decoder) if cuda_graphs else None
        elif decode_dtype is not None:
            raise ValueError(
                f"--decode-dtype {decode_dtype} is for decoders of amlp_fairseq without --retain-dropout, not for "
                f"{type(model.decoder).__name__}"
            )
        self.encoder = inference_encoder(model.encoder, decode_dtype)
        self.logit_bytes = next(model.parameters()).element_size()
        self.row_bytes = 0 if self.decoder is None else self.decoder.state_layout.row_bytes(SLOTS)

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> Any:
        """The encoder's output for sources (b, S)."""
        return self.encoder.forward_torchscript({"src_tokens": src_tokens, "src_lengths": src_lengths})

    def begin(self, src_tokens: Tensor, src_lengths: Tensor, beam: int) -> StepwiseDecoding:
        """Encode sources (b, S) and begin to decode, ``beam`` rows for each."""
        encoder_out = self.encode(src_tokens, src_lengths)
        if self.captured is not None:
            return CudaGraphDecoding(self.captured, encoder_out, beam)
        if self.decoder is not None:
            return Decoding(self.decoder, encoder_out, beam)
        return _ModelsOwnDecoding(self.model, encoder_out, beam)

    def begin_tree(self, src_tokens: Tensor, src_lengths: Tensor) -> TreeDecoding | None:
        """Encode sources (b, S) and begin to read trees of hypotheses; None if the decoder has not softmax attention
        alone."""
        if self.decoder is None or self.decoder.other_attention() is not None:
            return None
        return TreeDecoding(self.decoder, self.encode(src_tokens, src_lengths), beam=1)

    def begin_speculative(self, src_tokens: Tensor, src_lengths: Tensor) -> SpeculativeSession:
        """Encode sources (R, S) and begin to verify drafts of their translations.

        Raises:
            ValueError: for decoders that are not the plugin's, and as ``SpeculativeSession``.
        """
        if self.decoder is None:
            raise ValueError(
                "a draft needs a decoder of amlp_fairseq without --retain-dropout, not "
                f"{type(self.model.decoder).__name__}"
            )
        return SpeculativeSession(self.decoder, self.encode(src_tokens, src_lengths))


class _ModelsOwnDecoding:
    """A session that calls the model's own incremental forward."""

    def __init__(self, model: Any, encoder_out: Any, beam: int) -> None:
        self.model = model
        self.state: dict[str, Any] = {}
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
