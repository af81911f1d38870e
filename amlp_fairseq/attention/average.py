"""Average attention (Zhang, Xiong and Su 2018): the output at a position is the mean of the inputs visible from
there."""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.base import SelfAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext
from amlp_fairseq.ops.cumulative_mean import continue_mean, cumulative_mean
from amlp_fairseq.ops.precision import sum_dtype


@dataclass
class AverageOptions:
    """Options of 'average'."""

    no_average_ffn: bool = field(default=False, metadata={"help": "no feed-forward layer after the mean of 'average'"})
    no_average_gate: bool = field(default=False, metadata={"help": "leave out the gates of 'average'"})


@register_attention("average", options=AverageOptions)
class AverageAttention(SelfAttention):
    """Average attention of inputs y_j, without the residual connection and layer norm around it:

        g_j = FFN(1/j Σ_{k≤j} y_k)              average layer; no FFN with --no-average-ffn
        i_j, f_j = σ(W [y_j; g_j] + b)          gates, W: 2d → 2d; none with --no-average-gate
        h̃_j = i_j ⊙ y_j + f_j ⊙ g_j            without gates h̃_j = g_j

    Without causality the mean is over the whole sentence: attention with uniform instead of learned weights. The
    decoding state is the sum of the inputs.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        options, dim = spec.options, spec.option("embed_dim")
        self.num_heads, self.head_dim = 1, dim
        self.ffn = None
        if not options.no_average_ffn:
            inner = spec.option("ffn_embed_dim")
            dropout = FairseqDropout(options.activation_dropout, module_name=type(self).__name__)
            self.ffn = nn.Sequential(nn.Linear(dim, inner), nn.ReLU(), dropout, nn.Linear(inner, dim))
        self.gates = None if options.no_average_gate else nn.Linear(2 * dim, 2 * dim)

    def describe(self) -> dict[str, Any]:
        inner = 0 if self.ffn is None else self.ffn[0].out_features
        return {"kind": "average", "inner_width": inner, "gates": self.gates is not None}

    def forward_full(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        step_length = self.spec.words_per_step if self.spec.causal else len(x)
        return self._gated(x, cumulative_mean(x, step_length, padding_mask))

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        return {"total": like.new_zeros(rows, self.head_dim, dtype=sum_dtype(like))}

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        total, count = state["total"], context.end - x.size(1)
        means, new_total = continue_mean(x.transpose(0, 1), total, count, self.spec.words_per_step)
        total.copy_(new_total)
        return self._gated(x, means.transpose(0, 1)), None

    def _gated(self, y: Tensor, g: Tensor) -> Tensor:
        """Output h̃ (…, C) from inputs y and means g (…, C)."""
        if self.ffn is not None:
            g = self.ffn(g)
        if self.gates is None:
            return g
        i, f = self.gates(torch.cat([y, g], dim=-1)).sigmoid().chunk(2, dim=-1)
        return i * y + f * g
