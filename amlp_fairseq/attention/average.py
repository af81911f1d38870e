"""Average attention (Zhang, Xiong and Su 2018): every position gets the plain mean of what it may see."""

from __future__ import annotations

from typing import Any

import torch
from fairseq import utils
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.registry import Place, SelfAttention, check_whole_steps, register_attention
from amlp_fairseq.ops.cumulative_mean import continue_mean, cumulative_mean


@register_attention("average")
class AverageAttention(FairseqIncrementalState, SelfAttention):
    """For inputs y_j, the sublayer inside the residual connection and layer norm:

        g_j = FFN(1/j Σ_{k≤j} y_k)              average layer; without the FFN unless --average-ffn
        i_j, f_j = σ(W [y_j; g_j] + b)          gates, W: 2d → 2d; none with --no-average-gate
        h̃_j = i_j ⊙ y_j + f_j ⊙ g_j            without gates h̃_j = g_j

    Where it is not causal the mean runs over the whole sentence: uniform weights where self-attention has learned ones.
    The decoding state is the sum of the inputs and their number.
    """

    fixed_state = True

    def __init__(self, place: Place) -> None:
        super().__init__()
        options, dim = place.options, place.option("embed_dim")
        self.num_heads, self.head_dim = 1, dim
        self.causal, self.step = place.causal, place.words_per_step
        self.ffn = None
        if options.average_ffn:
            hidden = place.option("ffn_embed_dim")
            dropout = FairseqDropout(options.activation_dropout, module_name=type(self).__name__)
            self.ffn = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), dropout, nn.Linear(hidden, dim))
        self.gates = None if options.no_average_gate else nn.Linear(2 * dim, 2 * dim)

    def mix(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict[str, Any] | None) -> Tensor:
        y = x
        g = self._average(y, padding_mask, incremental_state)
        if self.ffn is not None:
            g = self.ffn(g)
        if self.gates is None:
            return g
        i, f = self.gates(torch.cat([y, g], dim=-1)).sigmoid().chunk(2, dim=-1)
        return i * y + f * g

    def _average(self, y: Tensor, padding_mask: Tensor | None, incremental_state: dict[str, Any] | None) -> Tensor:
        if incremental_state is None:
            return cumulative_mean(y, self.step if self.causal else len(y), padding_mask)
        check_whole_steps(len(y), self.step)
        state = utils.get_incremental_state(self, incremental_state, "average")
        if state is None:
            state = {"total": y.new_zeros((), dtype=torch.float32), "count": y.new_zeros((), dtype=torch.long)}
        total, count = state["total"], state["count"]
        means, total = continue_mean(y, total, count, self.step)
        utils.set_incremental_state(self, incremental_state, "average", {"total": total, "count": count + len(y)})
        return means

    def reorder_incremental_state(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Follow the beam."""
        state = utils.get_incremental_state(self, incremental_state, "average")
        if state is not None:
            state["total"] = state["total"].index_select(0, new_order)
