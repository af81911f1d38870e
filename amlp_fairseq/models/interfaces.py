"""Interfaces of models; decoding and search use no other members of a model. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from fairseq.models.nat import NATransformerDecoder
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.compat.internals import DecoderOut, TransformerDecoderLayerBase
from amlp_fairseq.ops.generation_order import GenerationOrder


class StepwiseDecoder(TransformerDecoderBase):
    """Transformer decoder that writes z words per step, with attentions of the registry.

    Attributes:
        words_per_step: z.
        starts: number of first positions without word embeddings (start symbols).
    """

    words_per_step: int
    starts = 0

    def embed_words(self, words: Tensor, positions: Tensor) -> Tensor:
        """Word embeddings (B, T', C) of words (B, T') at ``positions`` (T',) or (B, T')."""
        raise NotImplementedError

    def encode_positions(self, positions: Tensor) -> Tensor:
        """Position encodings (T', C) of positions (T',), which are added to the word embeddings."""
        raise NotImplementedError

    def attention_mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Mask (T', S), True where a position in ``queries`` (T',) attends to a position in ``keys`` (S,)."""
        raise NotImplementedError


class ParallelDecoder(NATransformerDecoder):
    """Non-autoregressive decoder that masks padding, so that sources and targets may be padded to any length."""


class ParallelDecoderLayer(TransformerDecoderLayerBase):
    """Layer of a non-autoregressive decoder."""

    def attention_blocks(self) -> list[tuple[Attention, nn.LayerNorm]]:
        """Attentions in order, with the norms of their residual blocks; the last attention attends to the source."""
        raise NotImplementedError


@runtime_checkable
class InterleavedTask(Protocol):
    """Task that trains on targets in generation order.

    Attributes:
        order: generation order of the targets.
    """

    order: GenerationOrder


@runtime_checkable
class ConvergingModel(Protocol):
    """Non-autoregressive model that can tell when further iterations have no effect."""

    def converged(self, before: DecoderOut, after: DecoderOut) -> Tensor:
        """Mask (B,) of the rows that no iteration after ``after.step`` can change, from the states before and after
        that iteration."""


@runtime_checkable
class CandidateModel(Protocol):
    """Non-autoregressive model whose candidates are not determined by their lengths."""

    def initialize_candidates(self, encoder_out: dict[str, Any], src_tokens: Tensor, count: int) -> DecoderOut:
        """First input of the decoder for ``count`` candidates of each of b sources (b, S): b·count rows."""
