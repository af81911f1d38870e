"""What every attention of the registry is: how layers call it, and how a decoder writes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

from amlp_fairseq.attention.registry import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext, with_slots

#: Slots for which fairseq's incremental decoding makes room at first; they are doubled when they are full.
SLOTS = 16


class Attention(FairseqIncrementalState, nn.Module):
    """An attention, built from an ``AttentionSpec``; subclasses are ``MultiHeadAttention`` and ``SelfAttention``.

    A decoder that writes from left to right, fairseq's or one made ready (``decoding/``), has a state for each of its
    attentions and calls ``step`` with the words of one or more whole steps, which updates the state in place. The state
    of "causal self" attention is made by ``init_state``, that of "causal cross" attention by ``remember``.
    """

    #: Of ``registry.PATTERNS``, what it can do.
    patterns: tuple[str, ...] = ()
    #: Whether it obeys ``attn_mask`` and ``StepContext.bias``, and needs them to be causal.
    takes_mask = False
    #: The tensors of its state that have a slot for each word, (R, …, slots, width).
    growing: tuple[str, ...] = ()
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
            slots: the room in the tensors that are ``growing``.
            like: a tensor of the type and on the device of the inputs.
        """
        raise NotImplementedError

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Causal attention of new words.

        Args:
            x: inputs at the new words, whole steps, (R, n, C).
            state: of the words before; those of ``x`` are added to it, in place.
            context: where the words stand.
            need_weights: whether cross-attention's weights are wanted, for those that have them.

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
        """``step`` for new words (T, B, C), with the state that fairseq keeps.

        Args:
            x: inputs at the new words.
            incremental_state: fairseq's decoding state; with the state goes the number of words, as ``length``.
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
        for name in () if self.spec.cross else self.growing:
            if end > state[name].size(-2):
                state[name] = with_slots(state[name], slots)
        context = StepContext(torch.arange(start, end, device=x.device), end, bias=bias)
        out, weights = self.step(x.transpose(0, 1), state, context, need_weights)
        utils.set_incremental_state(self, incremental_state, "state", {**state, "length": end})
        return out.transpose(0, 1), weights

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Go on with the rows ``new_order`` of the beam."""
        state = utils.get_incremental_state(self, incremental_state, "state")
        if state is not None:
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.index_select(0, new_order)

    def _get_input_buffer(self, incremental_state: dict[str, Any] | None) -> dict[str, Any]:
        """fairseq's decoder layer asks for it, and does nothing with it."""
        return {}


class SelfAttention(Attention):
    """Self-attention without queries, keys and values.

    Subclasses write ``mix``, and where they are causal ``init_state`` and ``step``.
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
            query: inputs (T, B, C); with ``incremental_state`` those that are new.
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
