"""What the multi-head attentions share: projections, heads, fairseq's calling convention, the steps of a decoder.

Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.registry import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext

#: What ``make_memory`` keeps of keys and values, by name: tensors with the sentences as their first axis.
Memory = State


class MultiHeadAttention(Attention):
    """Queries, keys and values in H heads of width d_h, with fairseq's parameter names and initialisation.

    Subclasses say which ``patterns`` they support. For all but "causal self" they implement ``make_memory``, what is
    kept of the keys and values, and ``attend``, what the queries take from it; a decoder calls the first once per
    sentence. For "causal self" they implement ``attend_causally``, for whole sequences, and ``init_state`` and
    ``step_causally``.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    patterns: tuple[str, ...] = ("noncausal self", "noncausal cross")

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        dim, heads = spec.option("embed_dim"), spec.option("attention_heads")
        if dim % heads:
            raise ValueError(f"--{spec.side}-attention-heads {heads} does not divide --{spec.side}-embed-dim {dim}")
        source_dim = spec.options.encoder_embed_dim if spec.cross else dim
        self.cross = spec.cross
        self.num_heads, self.head_dim = heads, dim // heads
        self.scaling = self.head_dim**-0.5
        self.dropout_module = FairseqDropout(spec.options.attention_dropout, module_name=type(self).__name__)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj, self.v_proj = nn.Linear(source_dim, dim), nn.Linear(source_dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        gain = 1 / math.sqrt(2) if source_dim == dim else 1.0
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        #: See ``pack_projections``: several projections as one map, "qkv" or "q" and "kv", and "out".
        self.packed: dict[str, Callable[[Tensor], Tensor]] = {}

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Split what fairseq's oldest checkpoints have in one, ``in_proj_weight`` and ``in_proj_bias``."""
        for kind in ("weight", "bias"):
            joined = f"{name}.in_proj_{kind}"
            if joined in state_dict:
                for projection, part in zip("qkv", state_dict.pop(joined).chunk(3), strict=True):
                    state_dict[f"{name}.{projection}_proj.{kind}"] = part

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
            incremental_state: fairseq's decoding state, for causal attention: ``query`` then has only new positions,
                and cross-attention reads ``key`` only once.
            need_weights: whether to return the weights, if the attention has any.
            attn_mask: bias for attentions with ``takes_mask``, (T, S).
            query_padding_mask: True for padding, (B, T); in self-attention that of the keys.

        Returns:
            (T, B, C), and the weights averaged over heads (B, T, S) or None.
        """
        if self.cross:
            if incremental_state is not None and self.spec.causal:
                return self.continue_decoding(
                    query,
                    incremental_state,
                    None,
                    need_weights,
                    lambda: {**self.project_source(key, key_padding_mask), **self.row_state(query.size(1), query)},
                )
            (q,), (k, v) = self.project(query, "q"), self.project(key, "kv")
        else:
            if incremental_state is not None and self.spec.causal:
                return self.continue_decoding(query, incremental_state, attn_mask)
            q, k, v = self.project(query, "qkv")
            query_padding_mask = key_padding_mask
        if self.spec.pattern == "causal self":
            out, weights = self.attend_causally(q, k, v, key_padding_mask, attn_mask), None
        else:
            memory = self.make_memory(k, v, key_padding_mask)
            out, weights = self.attend(q, memory, query_padding_mask, need_weights=need_weights)
        return self._output(out.permute(2, 0, 1, 3), query.shape), weights

    def cross_attend(self, query: Tensor, memory: Memory, query_padding_mask: Tensor | None = None) -> Tensor:
        """Cross-attention of ``query`` (T, B, C) over the memory of a source, from ``project_source``: (T, B, C)."""
        (q,) = self.project(query, "q")
        out, _ = self.attend(q, memory, query_padding_mask)
        return self._output(out.permute(2, 0, 1, 3), query.shape)

    def project_source(self, source: Tensor, padding_mask: Tensor | None) -> Memory:
        """The memory of a source (S, b, C') with padding mask (b, S), in tensors that share no storage with others: its
        sentences may be moved in place."""
        k, v = self.project(source, "kv")
        return self.make_memory(k.contiguous(), v.contiguous(), None if padding_mask is None else padding_mask.clone())

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        packed, rows, weights = self.packed, x.size(0), None
        if self.cross:  # the words of all rows of a sentence are queries to the same keys
            q = packed["q"](x) if packed else self.q_proj(x)
            q = q.view(rows // context.beam, -1, self.num_heads, self.head_dim).transpose(1, 2)
            out, weights = self.attend(q, state, None, context.slots, need_weights)
            weights = None if weights is None else weights.view(*x.shape[:2], -1)
        else:
            qkv = packed["qkv"](x) if packed else torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=2)
            qkv = qkv.view(rows, -1, 3, self.num_heads, self.head_dim).permute(0, 3, 2, 1, 4)
            out = self.step_causally(qkv.select(2, 0), qkv.narrow(2, 1, 2), state, context)
        return self._output(out.transpose(1, 2), x.shape), weights

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Memory:
        """What is kept of keys and values (B, H, S, d_h) with padding mask (B, S)."""
        memory = {"k": k, "v": v}
        return memory if padding_mask is None else {**memory, "padding_mask": padding_mask}

    def attend(
        self,
        q: Tensor,
        memory: Memory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What the queries take from the memory.

        Args:
            q: queries (B, H, T, d_h), not scaled.
            memory: from ``make_memory``.
            padding_mask: of the queries, (B, T).
            positions: of the queries, (n,), the same for each of several consecutive rows: T = rows · n; None:
                0 … T - 1.
            need_weights: whether to return the weights (B, T, S).

        Returns:
            (B, H, T, d_h), and the weights or None.
        """
        raise NotImplementedError

    def attend_causally(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Causal self-attention of whole sequences.

        Args:
            q: queries, and as ``k`` and ``v`` keys and values, (B, H, T, d_h).
            padding_mask: of the positions, (B, T).
            attn_mask: see ``forward``.

        Returns:
            (B, H, T, d_h).
        """
        raise NotImplementedError

    def step_causally(self, q: Tensor, kv: Tensor, state: State, context: StepContext) -> Tensor:
        """Causal self-attention of new words, see ``step``.

        Args:
            q: queries (R, H, n, d_h), not scaled.
            kv: keys and values, (R, H, 2, n, d_h).
            state: after the words before; updated in place.
            context: the words' slots, and what they may attend to.

        Returns:
            (R, H, n, d_h).
        """
        raise NotImplementedError

    def project(self, x: Tensor, names: str) -> list[Tensor]:
        """Queries, keys and values of inputs (T, B, C), or the ``names`` of them, one of "qkv", "q" and "kv":
        (B, H, T, d_h) each."""
        maps = [self.packed[names]] if self.packed else [getattr(self, f"{name}_proj") for name in names]
        if (tables := getattr(maps[0], "tables", None)) is not None:  # one that is packed in C++
            return list(tables(x, len(names), self.num_heads))
        shape = *x.shape[:2], len(names) // len(maps), self.num_heads, self.head_dim
        return [heads for each in maps for heads in each(x).view(shape).permute(2, 1, 3, 0, 4).unbind()]

    def pack_projections(
        self, pack: Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]], query_scale: float = 1.0
    ) -> None:
        """From now on compute all projections of the same input as one product, with copies of the present weights:
        for decoding only. With ``--retain-dropout`` nothing is packed.

        Args:
            pack: makes a map x → x Wᵀ + b of weights W (out, in) and biases b (out,).
            query_scale: a factor of the queries that goes into their weights.
        """
        self.packed = {}
        if self.dropout_module.apply_during_inference:
            return
        for names in ("q", "kv") if self.cross else ("qkv",):
            linears = [(getattr(self, f"{name}_proj"), query_scale if name == "q" else 1.0) for name in names]
            weight = torch.cat([linear.weight.detach() * scale for linear, scale in linears])
            self.packed[names] = pack(weight, torch.cat([linear.bias.detach() * scale for linear, scale in linears]))
        self.packed["out"] = pack(self.out_proj.weight, self.out_proj.bias)

    def _output(self, x: Tensor, shape: torch.Size) -> Tensor:
        """The output projection of heads joined to ``shape``."""
        return (self.packed["out"] if self.packed else self.out_proj)(x.reshape(shape))
