"""Interfaces of models for decoding and search, which use nothing else of them. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from fairseq.models.nat import NATransformerDecoder
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.compat.internals import DecoderOut, TransformerDecoderLayerBase


class StepwiseDecoder(TransformerDecoderBase):
    """A Transformer decoder that writes z words a step, with attentions of the registry.

    Attributes:
        words_per_step: z.
        starts: the first positions, whose words add nothing to the inputs.
    """

    words_per_step: int
    starts = 0

    def embed_words(self, words: Tensor, positions: Tensor) -> Tensor:
        """The words' part of the inputs (B, T', C): words (B, T') at ``positions`` (T',) or (B, T')."""
        raise NotImplementedError

    def encode_positions(self, positions: Tensor) -> Tensor:
        """The positions' part of the inputs, the same for all words: positions (T',) to (T', C)."""
        raise NotImplementedError

    def attention_mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """True where a position of ``queries`` (T',) attends to one of ``keys`` (S,): (T', S)."""
        raise NotImplementedError


class ParallelDecoder(NATransformerDecoder):
    """A non-autoregressive decoder that masks padding, so that sources and targets may be padded to any length."""


class ParallelDecoderLayer(TransformerDecoderLayerBase):
    """A layer of a non-autoregressive decoder."""

    def attention_blocks(self) -> list[tuple[Attention, nn.LayerNorm]]:
        """Its attentions with the norms of their residual blocks, in order; the last one attends to the source."""
        raise NotImplementedError


@runtime_checkable
class ConvergingModel(Protocol):
    """A non-autoregressive model that knows when further iterations have no effect."""

    def converged(self, before: DecoderOut, after: DecoderOut) -> Tensor:
        """True for the rows (B,) that no iteration later than ``after.step`` can change, given the state before it."""


@runtime_checkable
class CandidateModel(Protocol):
    """A non-autoregressive model whose candidates differ in more than their lengths."""

    def initialize_candidates(self, encoder_out: dict[str, Any], src_tokens: Tensor, count: int) -> DecoderOut:
        """The decoder's first input for ``count`` candidates of each of b sources (b, S): b·count rows."""
