"""The interface of the registry's attentions: how layers call them, and how a decoder steps through them.

Notation: docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from torch import Tensor, nn

from amlp_fairseq.attention.registry import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext, with_slots
from amlp_fairseq.compat.internals import FairseqIncrementalState

#: Slots that fairseq's incremental decoding allocates at first; they are doubled when they are full.
SLOTS = 16


class Attention(FairseqIncrementalState, nn.Module):
    """An attention, built from an ``AttentionSpec``; subclasses are ``MultiHeadAttention`` and ``SelfAttention``.

    A causal decoder, fairseq's or one made ready (``decoding/``), has a state for each of its attentions and calls
    ``step`` with the words of one or more whole steps, which updates the state in place. The state of "causal self"
    attention is made by ``init_state``, that of "causal cross" attention by ``project_source`` and ``row_state``.
    """

    #: The patterns of ``registry.PATTERNS`` that it supports.
    patterns: tuple[str, ...] = ()
    #: Whether it applies ``attn_mask`` and ``StepContext.bias``, and needs them to be causal.
    takes_mask = False
    #: The tensors of its state that have a slot for each word, (R, …, slots, width).
    per_position: tuple[str, ...] = ()
    #: fairseq's decoder layer reads them.
    num_heads: int
    head_dim: int

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        """The state of "causal self" attention before the first word: zeros.

        Args:
            rows: R.
            slots: how many the ``per_position`` tensors have room for.
            like: a tensor of the type and on the device of the inputs.
        """
        raise NotImplementedError

    def row_state(self, rows: int, like: Tensor) -> State:
        """What "causal cross" attention keeps of each row's queries beside the memory of the source: zeros before the
        first word, by other names than the memory's.

        Args:
            rows: R.
            like: see ``init_state``.
        """
        return {}

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Causal attention of new words.

        Args:
            x: inputs at the new words, whole steps, (R, n, C).
            state: after the words before; updated in place.
            context: the words' slots, and what they may attend to.
            need_weights: whether to return the weights of cross-attention, if it has any.

        Returns:
            (R, n, C), and the weights over the source averaged over heads (R, n, S) or None.
        """
        raise NotImplementedError

    def continue_decoding(
        self,
        x: Tensor,
        incremental_state: dict[str, Any],
        bias: Tensor | None = None,
        need_weights: bool = False,
        begin: Callable[[], State] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """``step`` for new words (T, B, C), with the state in fairseq's incremental state.

        Args:
            x: inputs at the new words.
            incremental_state: fairseq's; next to the state it has the number of words, as ``length``.
            bias: see ``StepContext``.
            need_weights: see ``step``.
            begin: makes the state before the first word; None: ``init_state``.

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
        slots = max(SLOTS, 1 << (end - 1).bit_length())
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
        """Apply a row permutation to the state."""
        state = utils.get_incremental_state(self, incremental_state, "state")
        if state is not None:
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.index_select(0, new_order)

    def _get_input_buffer(self, incremental_state: dict[str, Any] | None) -> dict[str, Any]:
        """fairseq's decoder layer calls it, and makes no use of the result."""
        return {}


class SelfAttention(Attention):
    """Self-attention without queries, keys and values.

    Subclasses implement ``mix``, and if they are causal ``init_state`` and ``step``.
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
        """What the layers call; ``key`` and ``value`` are ``query`` again.

        Args:
            query: inputs (T, B, C); with ``incremental_state`` only the new ones.
            key_padding_mask: True for padding, (B, T).
            incremental_state: fairseq's decoding state.

        Returns:
            (T, B, C) and None.
        """
        if incremental_state is not None:
            return self.continue_decoding(query, incremental_state)[0], None
        return self.mix(query, key_padding_mask), None

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Self-attention over the inputs (T, B, C), with True for padding in ``padding_mask`` (B, T): (T, B, C)."""
        raise NotImplementedError
