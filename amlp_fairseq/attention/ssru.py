"""SSRU, the "simpler simple recurrent unit" of Kim et al. (2019), "From Research to Production and Back: Ludicrously
Fast Neural Machine Translation", as causal self-attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.base import SelfAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.state import State, StepContext
from amlp_fairseq.ops.linear_recurrence import linear_recurrence
from amlp_fairseq.ops.precision import at_least_float32, sum_dtype


@register_attention("ssru")
class SSRU(SelfAttention):
    """Recurrence over the inputs x_t, without the residual connection and layer norm around it:

        f_t = σ(W_f x_t + b_f)                        forget gate
        c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ (W x_t)     cell, c_0 = 0
        o_t = relu(c_t)

    It replaces the self-attention of a decoder layer and nothing else: the residual connection and norm around it, the
    cross-attention and the feed-forward network of the layer stay. There is no output projection. The decoding state is
    the cell, whatever the length; in training all positions are computed by a parallel scan.

    With h directions (IBDecoder) each has a cell, which reads the inputs of its own direction alone; W, W_f and b_f are
    shared. An output is of the cells after its step, so that it sees the inputs of its step and of all steps before it
    (Eq. 4): its own direction's cell and, with a learned weight for every channel, the sum of the others':

        o_t = relu(c_d + u ⊙ Σ_{e≠d} c_e),   d = t mod h

    The c words that a direction writes in a step have the same output, as in the average attention: the residual
    connection tells them apart. Without it each would not see those after it in its step.
    """

    patterns = ("causal self",)

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        dim = spec.option("embed_dim")
        self.num_heads, self.head_dim = 1, dim
        self.directions = spec.directions
        self.forget = nn.Linear(dim, dim)
        self.candidate = nn.Linear(dim, dim, bias=False)
        for linear in (self.forget, self.candidate):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.forget.bias)
        self.others = nn.Parameter(torch.empty(dim).uniform_(-1, 1)) if self.directions > 1 else None

    def describe(self) -> dict[str, Any]:
        return {"kind": "ssru", "directions": self.directions}

    def forward_full(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        forget, new = self._gates(x)
        if padding_mask is not None:  # the cell stays as it is
            padding = padding_mask.t().unsqueeze(2)
            forget, new = forget.masked_fill(padding, 1), new.masked_fill(padding, 0)
        if rest := -len(x) % self.spec.words_per_step:
            forget, new = F.pad(forget, (0, 0, 0, 0, 0, rest), value=1), F.pad(new, (0, 0, 0, 0, 0, rest))
        cell = new.new_zeros(self.directions, *new.shape[1:])
        return self._continue(forget, new, cell)[0][: len(x)].to(x.dtype)

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        return {"cell": like.new_zeros(rows, self.directions, self.head_dim, dtype=sum_dtype(like))}

    def step(
        self, x: Tensor, state: State, context: StepContext, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        cell = state["cell"]
        out, last = self._continue(*self._gates(x.transpose(0, 1)), cell.transpose(0, 1))
        cell.copy_(last.transpose(0, 1))
        return out.transpose(0, 1).to(x.dtype), None

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f and (1 - f) ⊙ W x of inputs (T, B, C), in float32 at least."""
        forget = at_least_float32(self.forget(x)).sigmoid()
        return forget, (1 - forget) * at_least_float32(self.candidate(x))

    def _continue(self, forget: Tensor, new: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (T, B, C) of whole steps, and the cells after them.

        Args:
            forget: f, (T, B, C).
            new: (1 - f) ⊙ W x, (T, B, C).
            cell: cells before, (h, B, C).
        """
        h = self.directions
        cells = linear_recurrence(forget.unflatten(0, (-1, h)), new.unflatten(0, (-1, h)), cell)  # (T/h, h, B, C)
        words = self.spec.words_per_step // h
        seen = cells[words - 1 :: words]  # after each step
        if self.others is not None:
            seen = seen + self.others * (seen.sum(dim=1, keepdim=True) - seen)
        out = seen.relu().unsqueeze(1).expand(-1, words, -1, -1, -1)
        return out.flatten(0, 2), cells[-1]
