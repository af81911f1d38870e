"""What the multi-head attentions share: projections, heads, the decoding state, fairseq's way of calling."""

from __future__ import annotations

import math
from typing import Any

from fairseq import utils
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.registry import Place, check_whole_steps

#: Tensors with the sentences as their first axis, or None.
Memory = dict[str, Any]


class MultiHeadAttention(FairseqIncrementalState, nn.Module):
    """Queries, keys and values in H heads of width d_h, with fairseq's parameter names and initialisation.

    Subclasses say which ``patterns`` they support. For all but "causal self" they write ``remember``, what is kept of
    the keys and values, and ``read``, what the queries take from it; a decoder runs the first once per sentence. For
    "causal self" they write ``continue_causally``.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    patterns: tuple[str, ...] = ("noncausal self", "noncausal cross")
    #: Whether it obeys ``attn_mask``, and needs it to be causal.
    takes_mask = False
    #: Whether its "causal self" decoding state is tensors of the same shapes at every step, all zero before the first.
    fixed_state = False

    def __init__(self, place: Place) -> None:
        super().__init__()
        dim, heads = place.option("embed_dim"), place.option("attention_heads")
        if dim % heads:
            raise ValueError(f"--{place.side}-attention-heads {heads} does not divide --{place.side}-embed-dim {dim}")
        source_dim = place.options.encoder_embed_dim if place.cross else dim
        self.place = place
        self.num_heads, self.head_dim = heads, dim // heads
        self.scaling = self.head_dim**-0.5
        self.dropout_module = FairseqDropout(place.options.attention_dropout, module_name=type(self).__name__)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj, self.v_proj = nn.Linear(source_dim, dim), nn.Linear(source_dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        gain = 1 / math.sqrt(2) if source_dim == dim else 1.0
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

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
        static_kv: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of ``query`` (T, B, C) over ``key`` (S, B, C'); ``value`` is ``key``.

        Args:
            key_padding_mask: True for padding, (B, S).
            incremental_state: fairseq's decoding state: self-attention then gets new positions only, and
                cross-attention keeps what it made of the source, and where it is not causal gets all positions again.
            need_weights: whether the weights are wanted, for those that have them.
            attn_mask: what ``takes_mask`` speaks of, 0 or -inf, (T, S).
            query_padding_mask: True for padding, (B, T); in self-attention that of the keys.

        Returns:
            (T, B, C), and the weights averaged over heads (B, T, S) or None.
        """
        q = self.split_heads(self.q_proj(query))
        state = None if incremental_state is None else utils.get_incremental_state(self, incremental_state, "state")
        weights = None
        if self.place.pattern == "causal self":
            k, v = self.split_heads(self.k_proj(key)), self.split_heads(self.v_proj(value))
            if incremental_state is not None:
                check_whole_steps(len(query), self.place.words_per_step)
            out, new_state = self.continue_causally(q, k, v, state or {}, key_padding_mask, attn_mask)
        else:
            memory = state
            if memory is None:
                k, v = self.split_heads(self.k_proj(key)), self.split_heads(self.v_proj(value))
                memory = {**self.remember(k, v, key_padding_mask), "queries": 0}
            if not self.place.cross:
                query_padding_mask = key_padding_mask
            start = memory["queries"]
            out, weights = self.read(q, memory, query_padding_mask, start, need_weights)
            new_state = {**memory, "queries": start + len(query) if self.place.causal else 0}
        if incremental_state is not None:
            utils.set_incremental_state(self, incremental_state, "state", new_state)
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2)), weights

    def remember(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Memory:
        """What is kept of keys and values (B, H, S, d_h) with padding mask (B, S)."""
        return {"k": k, "v": v, "padding_mask": padding_mask}

    def read(
        self, q: Tensor, memory: Memory, padding_mask: Tensor | None, start: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """What the queries take from the memory.

        Args:
            q: queries (B, H, T, d_h), not scaled.
            memory: from ``remember``.
            padding_mask: of the queries, (B, T).
            start: the position of the first query; more than 0 in incremental decoding.
            need_weights: whether the weights (B, T, S) are wanted.

        Returns:
            (B, H, T, d_h), and the weights or None.
        """
        raise NotImplementedError

    def continue_causally(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: dict[str, Any],
        padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Causal self-attention over what came before and the new positions, all (B, H, T, d_h).

        Args:
            state: from the call before, empty at first.
            padding_mask: of the positions, (B, T); None in incremental decoding.
            attn_mask: see ``forward``.

        Returns:
            (B, H, T, d_h) and the new state.
        """
        raise NotImplementedError

    def split_heads(self, x: Tensor) -> Tensor:
        """(T, B, C) seen as (B, H, T, d_h)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Follow the beam."""
        state = utils.get_incremental_state(self, incremental_state, "state")
        if state is not None:
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.index_select(0, new_order)

    def _get_input_buffer(self, incremental_state: dict[str, Any] | None) -> dict[str, Any]:
        """fairseq's decoder layer asks for it, and does nothing with it."""
        return {}
