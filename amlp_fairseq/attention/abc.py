"""ABC: attention with bounded-memory control (Peng et al. 2022), with the control computed by a learned map."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import KVMemory
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.running_sums import RunningSums
from amlp_fairseq.attention.shared_options import InnerDimOptions
from amlp_fairseq.attention.spec import PATTERNS, AttentionSpec
from amlp_fairseq.attention.state import State
from amlp_fairseq.ops.precision import at_least_float32, sum_dtype

#: Minimum number of positions in a block of causal attention.
BLOCK = 64
#: Bound on |log φ| in causal attention, so that the sums of φ neither vanish nor overflow in float32.
LIMIT = 20.0


@register_attention("abc", options=InnerDimOptions)
class ABCAttention(RunningSums):
    """Softmax attention over c weighted means of the keys and of the values, with learned weights:

        φ_i = exp(W_φ k_i),   K̃ = Σ_i φ_i ⊗ k_i / Σ_i φ_i,   likewise Ṽ with a separate W_φ
        out = softmax(Q K̃ᵀ / √d_h) Ṽ

    K̃ and Ṽ are (c, d_h) per head. The heads share W_φ: d_h → c, one for the keys and one for the values, which gives
    the 2 c d_h parameters per layer in Table 3 of the AMLP paper. c is ``--attention-inner-dim``. The causal form uses
    the sums up to each position, with φ clamped to [e^-20, e^20]; these sums are its decoding state.
    """

    patterns = PATTERNS

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        c = spec.count("attention_inner_dim")
        self.k_control = nn.Linear(self.head_dim, c, bias=False)
        self.v_control = nn.Linear(self.head_dim, c, bias=False)

    def describe(self) -> dict[str, Any]:
        return {"kind": "abc", "heads": self.num_heads, "slots": self.k_control.out_features}

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
        return {
            name: _means(x, control, padding_mask)
            for name, x, control in (("k", k, self.k_control), ("v", v, self.v_control))
        }

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v = memory["k"], memory["v"]
        weights = at_least_float32((q * self.scaling) @ k.transpose(2, 3)).softmax(dim=-1).to(q)
        return self.dropout_module(weights) @ v, None

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        c, width = self.k_control.out_features, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"k": (c, width), "v": (c, width), "k_norm": (c,), "v_norm": (c,)}
        return {
            name: like.new_zeros(rows, self.num_heads, *shape, dtype=sum_dtype(like)) for name, shape in shapes.items()
        }

    def continue_sums(
        self, q: Tensor, k: Tensor, v: Tensor, sums: State, padding_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        # The sums are float32 at least. K̃ and Ṽ of single positions are never stored: q·K̃ and the weighted sum of Ṽ are
        # computed from products within the block, under its causal mask, plus products with the sums before the block.
        z, length = self.spec.words_per_step, q.size(2)
        block = -(-BLOCK // z) * z
        outputs = []
        for start in range(0, length, block):
            span = slice(start, min(start + block, length))
            padding = None if padding_mask is None else padding_mask[:, span]
            with torch.autocast(q.device.type, enabled=False):  # the sums would overflow in half precision
                out, sums = self._block(q[:, :, span], k[:, :, span], v[:, :, span], sums, padding)
            outputs.append(out)
        return torch.cat(outputs, dim=2), sums

    def _block(self, q: Tensor, k: Tensor, v: Tensor, sums: State, padding_mask: Tensor | None) -> tuple[Tensor, State]:
        """Outputs (B, H, T, d_h) of one block, and the sums after the block."""
        dtype = q.dtype
        k_phi, v_phi = (
            _log_control(x, control).clamp(-LIMIT, LIMIT).exp()
            for x, control in ((k, self.k_control), (v, self.v_control))
        )
        if padding_mask is not None:
            k_phi, v_phi = (phi.masked_fill(padding_mask[:, None, :, None], 0) for phi in (k_phi, v_phi))
        q, k, v = (at_least_float32(x) for x in (q, k, v))
        steps = torch.arange(q.size(2), device=q.device) // self.spec.words_per_step
        seen = (steps <= steps.unsqueeze(1)).to(q)  # (T, T)
        k_norm, v_norm = (
            (sums[name].unsqueeze(2) + seen @ phi).clamp(min=1e-12)
            for name, phi in (("k_norm", k_phi), ("v_norm", v_phi))
        )
        scores = (q @ sums["k"].transpose(2, 3) + (q @ k.transpose(2, 3) * seen) @ k_phi) / k_norm
        weights = self.dropout_module((scores * self.scaling).softmax(dim=-1)) / v_norm
        out = weights @ sums["v"] + (weights @ v_phi.transpose(2, 3) * seen) @ v
        return out.to(dtype), {
            "k": sums["k"] + k_phi.transpose(2, 3) @ k,
            "v": sums["v"] + v_phi.transpose(2, 3) @ v,
            "k_norm": sums["k_norm"] + k_phi.sum(dim=2),
            "v_norm": sums["v_norm"] + v_phi.sum(dim=2),
        }


def _log_control(x: Tensor, control: nn.Linear) -> Tensor:
    """log φ of ``x`` (B, H, S, d_h): (B, H, S, c) in float32 at least."""
    return F.linear(at_least_float32(x), at_least_float32(control.weight))


def _means(x: Tensor, control: nn.Linear, padding_mask: Tensor | None) -> Tensor:
    """Weighted means (B, H, c, d_h) of the positions of ``x`` (B, H, S, d_h) that are not padding."""
    logits = _log_control(x, control)
    if padding_mask is not None:
        logits = logits.masked_fill(padding_mask[:, None, :, None], -1e4)
    return logits.softmax(dim=2).to(x).transpose(2, 3) @ x
