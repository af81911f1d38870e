"""Base classes of the registry's attentions: their interface to layers and to step-by-step decoding.

Notation: docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from torch import Tensor, nn

from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext, with_slots
from amlp_fairseq.compat.internals import FairseqIncrementalState
from amlp_fairseq.engine.description import UnsupportedError

#: Initial size of the buffers in fairseq's incremental decoding, in slots; a full buffer is doubled.
INITIAL_SLOTS = 16


class Attention(FairseqIncrementalState, nn.Module):
    """Attention built from an ``AttentionSpec``; subclasses are ``MultiHeadAttention`` and ``SelfAttention``.

    A causal decoder, fairseq's or an inference decoder (``decoding/``), has a state for each of its attentions and
    calls ``step`` with the words of one or more whole steps, which updates the state in place. ``init_state`` creates
    the state of "causal self" attention; ``project_source`` and ``row_state`` create the state of "causal cross"
    attention.
    """

    #: Supported patterns, from ``registry.PATTERNS``.
    patterns: tuple[str, ...] = ()
    #: True if the attention applies ``attn_mask`` and ``StepContext.bias``, and needs them to be causal.
    takes_mask = False
    #: Names of the state's tensors with a slot for each word, (R, …, slots, width).
    per_position: tuple[str, ...] = ()
    #: Name in the registry.
    name: str
    #: Number of heads and width of a head, which fairseq's decoder layer reads.
    num_heads: int
    head_dim: int

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        """State of "causal self" attention before the first word: zeros.

        Args:
            rows: R.
            slots: size of the ``per_position`` tensors.
            like: tensor with the dtype and device of the inputs.
        """
        raise NotImplementedError

    def row_state(self, rows: int, like: Tensor) -> State:
        """Part of the state of "causal cross" attention that depends on a row's queries, before the first word: zeros.

        The names differ from the names in the memory of the source.

        Args:
            rows: R.
            like: see ``init_state``.
        """
        return {}

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Causal attention at new positions.

        Args:
            x: inputs at the new positions, whole steps, (R, n, C).
            state: state after the previous positions; updated in place.
            context: slots of the new positions, and the mask.
            need_weights: return the weights of cross-attention, if the attention has weights.

        Returns:
            Outputs (R, n, C), and the weights over the source averaged over heads (R, n, S) or None.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the attention to the engine: its ``kind`` in ``engine/src/kinds.h``, sizes and switches.

        Raises:
            UnsupportedError: for an attention that the engine does not have.
        """
        raise UnsupportedError(f"the attention {self.name}")

    def continue_decoding(
        self,
        x: Tensor,
        incremental_state: dict[str, Any],
        bias: Tensor | None = None,
        need_weights: bool = False,
        begin: Callable[[], State] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run ``step`` for new words (T, B, C), with the state in fairseq's incremental state.

        Args:
            x: inputs at the new words.
            incremental_state: fairseq's; also holds the number of words, as ``length``.
            bias: see ``StepContext``.
            need_weights: see ``step``.
            begin: creates the state before the first word; None: ``init_state``.

        Raises:
            ValueError: unless the words are whole steps.
        """
        if len(x) % self.spec.words_per_step:
            raise ValueError(
                f"incremental decoding takes whole steps of {self.spec.words_per_step} positions, not {len(x)}"
            )
        state: dict[str, Any] | None = utils.get_incremental_state(self, incremental_state, "state")
        start = 0 if state is None else state.pop("length")
        end = start + len(x)
        slots = max(INITIAL_SLOTS, 1 << (end - 1).bit_length())
        if state is None:
            state = self.init_state(x.size(1), slots, x) if begin is None else begin()
        for name in () if self.spec.cross else self.per_position:
            if end > state[name].size(-2):
                state[name] = with_slots(state[name], slots)
        context = StepContext(torch.arange(start, end, device=x.device), end, bias=bias)
        out, weights = self.step(x.transpose(0, 1), state, context, need_weights)
        utils.set_incremental_state(self, incremental_state, "state", {**state, "length": end})
        return out.transpose(0, 1), weights

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Replace row i of the state by row ``new_order[i]``."""
        state = utils.get_incremental_state(self, incremental_state, "state")
        if state is not None:
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.index_select(0, new_order)

    def _get_input_buffer(self, incremental_state: dict[str, Any] | None) -> dict[str, Any]:
        """An empty buffer: fairseq's decoder layer calls this method and ignores the result."""
        return {}


class SelfAttention(Attention):
    """Self-attention without queries, keys and values.

    Subclasses implement ``forward_full``, and for "causal self" also ``init_state`` and ``step``.
    """

    patterns: tuple[str, ...] = ("noncausal self", "causal self")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Self-attention as fairseq's layers call it; ``key`` and ``value`` are ignored, being ``query`` again.

        Args:
            query: inputs (T, B, C); with ``incremental_state`` only the new positions.
            key_padding_mask: True for padding, (B, T).
            incremental_state: fairseq's decoding state.

        Returns:
            Outputs (T, B, C), and None for the weights.
        """
        if incremental_state is not None:
            return self.continue_decoding(query, incremental_state)[0], None
        return self.forward_full(query, key_padding_mask), None

    def forward_full(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Self-attention of whole sequences (T, B, C) to (T, B, C); ``padding_mask`` (B, T) is True at padding."""
        raise NotImplementedError
