"""Self-attention within a window: "self-attention baseline (k=3,7,15,31x3)" of Wu et al. (2019), Table 3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amlp_fairseq.modules.attention import Place, SoftmaxAttention, register_attention


@register_attention("local")
class LocalAttention(SoftmaxAttention):
    """Softmax attention to k positions: a centred window in the encoder, the last k positions in the decoder, counted
    from the end of the step where a step has several words."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        k = place.kernel_size
        self.step = place.words_per_step
        self.left, self.right = (k - 1, 0) if place.side == "decoder" else ((k - 1) // 2, k // 2)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``SelfAttention.forward``."""
        consumed = 0
        if incremental_state is not None:
            saved = self._get_input_buffer(incremental_state)
            consumed = saved["prev_key"].size(2) if "prev_key" in saved else 0
        queries = torch.arange(consumed, consumed + len(query), device=query.device)
        keys = torch.arange(consumed + len(query), device=query.device)
        distance = keys - (queries // self.step * self.step + self.step - 1).unsqueeze(1)
        outside = (distance < -self.left) | (distance > self.right)
        # Not -inf: where a window holds nothing but padding, all its keys would be, and the softmax undefined.
        window = torch.zeros(outside.shape, dtype=query.dtype, device=query.device).masked_fill(outside, -1e4)
        return super().forward(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask,
            incremental_state=incremental_state,
            need_weights=need_weights,
            attn_mask=window if attn_mask is None else window + attn_mask,
        )
