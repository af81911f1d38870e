"""A plain convolution as self-attention: the CNN row of Wu et al. (2019), Table 3."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.registry import Place, SelfAttention, register_attention
from amlp_fairseq.attention.window import WindowedLayer


class _Conv1d(WindowedLayer):
    def __init__(self, place: Place, channels: int) -> None:
        super().__init__(place)
        if self.step > 1:
            raise ValueError(f"the attention type 'cnn' writes one word per step, not {self.step}")
        self.conv = nn.Conv1d(channels, channels, self.kernel_size)

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        missing = len(x) + self.kernel_size - 1 - padding_l - len(inputs)
        padded = F.pad(inputs.permute(1, 2, 0), (padding_l, missing))
        return self.conv(padded).permute(2, 0, 1)


@register_attention("cnn")
class CNNBlock(SelfAttention):
    """A non-separable convolution d → d of width k, without input and output projections (Section 6.2)."""

    fixed_state = True

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 1, place.option("embed_dim")
        self.conv = _Conv1d(place, self.head_dim)

    def mix(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict[str, Any] | None) -> Tensor:
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.t().unsqueeze(2), 0)
        return self.conv(x, incremental_state)
