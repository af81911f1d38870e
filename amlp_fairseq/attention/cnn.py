"""Plain convolution as self-attention: the row "CNN" of Wu et al. (2019), Table 3."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.shared_options import KernelSizeOptions
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.window import WindowedAttention, WindowedLayer


class _Conv1d(WindowedLayer):
    """PyTorch's convolution, channels → channels."""

    def __init__(self, spec: AttentionSpec, channels: int) -> None:
        super().__init__(spec, channels)
        if spec.words_per_step > 1:
            raise ValueError(f"the attention type 'cnn' writes one word per step, not {spec.words_per_step}")
        self.conv = nn.Conv1d(channels, channels, self.kernel_size)

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        padding_r = len(x) + self.kernel_size - 1 - padding_l - len(inputs)
        padded = F.pad(inputs.permute(1, 2, 0), (padding_l, padding_r))
        return self.conv(padded).permute(2, 0, 1)


@register_attention("cnn", options=KernelSizeOptions)
class CNNBlock(WindowedAttention):
    """Non-separable convolution d → d of width k, without input and output projections (Section 6.2)."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.num_heads, self.head_dim = 1, spec.option("embed_dim")
        self.conv = _Conv1d(spec, self.head_dim)
