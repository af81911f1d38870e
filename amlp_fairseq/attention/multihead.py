"""Base class of the multi-head attentions: projections, heads, fairseq's calling convention, decoding steps.

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
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext

#: Result of ``make_memory``, a function of keys and values: tensors by name, whose first axis is the sentences.
KVMemory = State


class MultiHeadAttention(Attention):
    """Attention of queries to keys and values in H heads of width d_h, with fairseq's parameter names and
    initialisation.

    Subclasses declare the ``patterns`` that they support. For "causal self" they implement ``attend_causally`` (whole
    sequences), ``init_state`` and ``step_causally``. For the other patterns they implement ``make_memory``, which a
    decoder calls once per sentence, and ``attend``.

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
        #: Several projections as one map, "qkv" or "q" and "kv", and "out"; see ``pack_projections``.
        self.packed: dict[str, Callable[[Tensor], Tensor]] = {}

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Split ``in_proj_weight`` and ``in_proj_bias`` of fairseq's oldest checkpoints into the three projections."""
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
                and cross-attention reads ``key`` only in the first call.
            need_weights: return the weights, if the attention has weights.
            attn_mask: bias for attentions with ``takes_mask``, (T, S).
            query_padding_mask: True for padding, (B, T); ignored in self-attention, which uses ``key_padding_mask``.

        Returns:
            Outputs (T, B, C), and the weights averaged over heads (B, T, S) or None.
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

    def cross_attend(self, query: Tensor, memory: KVMemory, query_padding_mask: Tensor | None = None) -> Tensor:
        """Cross-attention of ``query`` (T, B, C) over the memory of a source, from ``project_source``: (T, B, C)."""
        (q,) = self.project(query, "q")
        out, _ = self.attend(q, memory, query_padding_mask)
        return self._output(out.permute(2, 0, 1, 3), query.shape)

    def project_source(self, source: Tensor, padding_mask: Tensor | None) -> KVMemory:
        """Memory of a source (S, b, C') with padding mask (b, S).

        The tensors share no storage with other tensors, so that their sentences may be permuted in place.
        """
        k, v = self.project(source, "kv")
        return self.make_memory(k.contiguous(), v.contiguous(), None if padding_mask is None else padding_mask.clone())

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        packed, rows, weights = self.packed, x.size(0), None
        if self.cross:  # the hypotheses of a sentence attend to the same keys
            q = packed["q"](x) if packed else self.q_proj(x)
            q = q.view(rows // context.beam, -1, self.num_heads, self.head_dim).transpose(1, 2)
            out, weights = self.attend(q, state, None, context.slots, need_weights)
            weights = None if weights is None else weights.view(*x.shape[:2], -1)
        else:
            qkv = packed["qkv"](x) if packed else torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=2)
            qkv = qkv.view(rows, -1, 3, self.num_heads, self.head_dim).permute(0, 3, 2, 1, 4)
            out = self.step_causally(qkv.select(2, 0), qkv.narrow(2, 1, 2), state, context)
        return self._output(out.transpose(1, 2), x.shape), weights

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
        """Memory of keys and values (B, H, S, d_h) with padding mask (B, S): all that ``attend`` needs."""
        memory = {"k": k, "v": v}
        return memory if padding_mask is None else {**memory, "padding_mask": padding_mask}

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of queries to the keys and values in the memory.

        Args:
            q: queries (B, H, T, d_h), not scaled.
            memory: result of ``make_memory``.
            padding_mask: True at padding queries, (B, T).
            positions: positions of the queries (n,), the same for each of several rows in turn: T = rows · n; None:
                0 … T - 1.
            need_weights: return the weights (B, T, S).

        Returns:
            Outputs (B, H, T, d_h), and the weights or None.
        """
        raise NotImplementedError

    def attend_causally(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Causal self-attention of whole sequences.

        Args:
            q: queries (B, H, T, d_h).
            k: keys (B, H, T, d_h).
            v: values (B, H, T, d_h).
            padding_mask: True at padding, (B, T).
            attn_mask: see ``forward``.

        Returns:
            (B, H, T, d_h).
        """
        raise NotImplementedError

    def step_causally(self, q: Tensor, kv: Tensor, state: State, context: StepContext) -> Tensor:
        """Causal self-attention at new positions, see ``step``.

        Args:
            q: queries (R, H, n, d_h), not scaled.
            kv: keys and values, (R, H, 2, n, d_h).
            state: state after the previous positions; updated in place.
            context: slots of the new positions, and the mask.

        Returns:
            (R, H, n, d_h).
        """
        raise NotImplementedError

    def project(self, x: Tensor, names: str) -> list[Tensor]:
        """Projections of inputs (T, B, C) into heads: (B, H, T, d_h) each.

        Args:
            names: the projections: "qkv", "q" or "kv".
        """
        maps = [self.packed[names]] if self.packed else [getattr(self, f"{name}_proj") for name in names]
        shape = *x.shape[:2], len(names) // len(maps), self.num_heads, self.head_dim
        return [heads for linear in maps for heads in linear(x).view(shape).permute(2, 1, 3, 0, 4).unbind()]

    def pack_projections(
        self, pack: Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]], query_scale: float = 1.0
    ) -> None:
        """Compute all projections of the same input as one product from now on, with copies of the current weights: for
        decoding only. With ``--retain-dropout`` nothing is packed.

        Args:
            pack: creates the map x → x Wᵀ + b from weights W (out, in) and biases b (out,).
            query_scale: factor of the queries, multiplied into their weights.
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
        """Output projection of heads, joined to ``shape``."""
        return (self.packed["out"] if self.packed else self.out_proj)(x.reshape(shape))
