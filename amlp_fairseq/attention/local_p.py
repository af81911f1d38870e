"""Local attention with a predicted window, "local-p" of Luong et al. (2015). Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.local import LocalOptions, LocalSoftmaxAttention
from amlp_fairseq.attention.multihead import KVMemory
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.ops.precision import at_least_float32


@register_attention("local_p", options=LocalOptions)
class LocalPAttention(LocalSoftmaxAttention):
    """Cross-attention within a window whose centre p_t is predicted from the query h_t, with a Gaussian around the
    centre:

        p_t = S · sigmoid(v_pᵀ tanh(W_p h_t))
        a_t(j) = softmax_{|j - p_t| ≤ D}(sim(s_j, h_t)) · exp(-(j - p_t)² / 2σ²),   σ = D/2

    for source positions j = 1 … S. The width of the window is 2D + 1: ``--attention-window``, by default the layer's
    entry in the kernel size list. The heads share W_p (d_h, d_h) and v_p (d_h,); their queries, and therefore their
    centres, differ. All S positions are scored, and positions outside the window are masked.

    Raises:
        ValueError: if the window has fewer than 3 positions: a window of 2 can miss the source.
    """

    patterns = ("noncausal cross", "causal cross")

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        window = spec.options.attention_window
        width = spec.kernel_size if window is None else window
        if width < 3:
            flag = f"--{spec.side}-kernel-size-list" if window is None else "--attention-window"
            raise ValueError(f"{flag} {width}: the windows of 'local_p' must have at least 3 positions")
        self.reach = (width - 1) / 2  # D
        self.w_p = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.v_p = nn.Linear(self.head_dim, 1, bias=False)

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v, key_padding_mask = memory["k"], memory["v"], memory.get("padding_mask")
        if key_padding_mask is None:
            words = torch.ones(k.size(0), 1, 1, k.size(2), dtype=torch.bool, device=k.device)
        else:
            words = ~key_padding_mask[:, None, None]
        source_length = words.sum(dim=3, keepdim=True)  # S
        p = source_length * at_least_float32(self.v_p(torch.tanh(self.w_p(q)))).sigmoid()  # (B, H, T, 1)
        distance = words.cumsum(dim=3) - p
        inside = words & (distance.abs() <= self.reach)
        scores = self.similarity(q, k.transpose(2, 3))
        # Not -inf: a source may contain only padding, where softmax would be undefined.
        weights = scores.masked_fill(~inside, -1e4).softmax(dim=-1)
        sigma = self.reach / 2
        weights = (weights * torch.exp(-distance.square() / (2 * sigma**2))).to(q)
        return self.dropout_module(weights) @ v, weights.mean(dim=1) if need_weights else None
