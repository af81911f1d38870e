"""LightConv and DynamicConv as self-attentions (Wu et al. 2019, Sections 3 and 4, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.registry import Place, SelfAttention, register_attention
from amlp_fairseq.attention.window import WindowedLayer
from amlp_fairseq.ops.dynamic_conv import dynamic_conv, light_conv

_EPSILON = 1e-5


def _divided(weight: Tensor, order: int) -> Tensor:
    norm = torch.linalg.vector_norm(weight, order, dim=-1, keepdim=True)
    return weight / (norm + _EPSILON)


#: Table 6: what may be done to the weights W over the kernel axis. The operators have the softmax inside.
NORMALIZATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda w: w,
    "none": lambda w: w,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "l1": lambda w: _divided(w, 1),
    "l2": lambda w: _divided(w, 2),
    "power": torch.square,
    "abs": torch.abs,
    "abs-l1": lambda w: _divided(w, 1).abs(),
    "abs-l2": lambda w: _divided(w, 2).abs(),
}


class _Convolution(WindowedLayer):
    """What the two convolutions share: C channels in H heads, normalisation, DropConnect."""

    def __init__(self, place: Place, channels: int, heads: int) -> None:
        super().__init__(place)
        self.channels, self.num_heads = channels, heads
        self.normalization = place.options.weight_normalization
        dropout = place.options.weight_dropout
        self.weight_dropout = place.options.attention_dropout if dropout is None else dropout

    def operator_options(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "softmax": self.normalization == "softmax",
            "dropout": self.weight_dropout if self.training else 0.0,
        }

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, kernel_size={self.kernel_size}, padding_l={self.padding_l}, num_heads={self.num_heads}, "
            f"normalization={self.normalization}, weight_dropout={self.weight_dropout}"
        )


class LightConv(_Convolution):
    """Section 3. ``weight`` (H, 1, k) has the name and shape that fairseq's LightweightConv gives it."""

    def __init__(self, place: Place, channels: int, heads: int) -> None:
        super().__init__(place, channels, heads)
        self.weight = nn.Parameter(torch.empty(heads, 1, self.kernel_size))
        nn.init.xavier_uniform_(self.weight)

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        weight = NORMALIZATIONS[self.normalization](self.weight.squeeze(1))
        return light_conv(inputs, weight, padding_l, length=x.size(0), **self.operator_options())


class DynamicConv(_Convolution):
    """Section 4. ``weight_linear`` is W^Q, with the name and shape that fairseq's DynamicConv gives it."""

    def __init__(self, place: Place, channels: int, heads: int) -> None:
        super().__init__(place, channels, heads)
        self.weight_linear = nn.Linear(channels, heads * self.kernel_size, bias=False)

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        weight = self.weight_linear(x).unflatten(-1, (self.num_heads, self.kernel_size))
        return dynamic_conv(inputs, NORMALIZATIONS[self.normalization](weight), padding_l, **self.operator_options())


class ConvolutionBlock(SelfAttention):
    """Figure 1: linear map d → 2d, gated linear unit, convolution, linear map d → d; or d → d without the unit."""

    fixed_state = True
    convolution: type[_Convolution]

    def __init__(self, place: Place) -> None:
        super().__init__()
        embed_dim = place.option("embed_dim")
        channels = place.option("conv_dim") or embed_dim
        self.num_heads = place.option("conv_heads") or place.option("attention_heads")
        if channels % self.num_heads:
            raise ValueError(
                f"--{place.side}-conv-heads {self.num_heads} (default: --{place.side}-attention-heads) does not divide "
                f"the {channels} channels of --{place.side}-conv-dim (default: --{place.side}-embed-dim)"
            )
        self.head_dim = channels // self.num_heads
        self.input_dropout_module = FairseqDropout(place.options.input_dropout, module_name=type(self).__name__)
        self.glu = bool(place.option("glu"))
        self.linear1 = nn.Linear(embed_dim, 2 * channels if self.glu else channels)
        self.conv = self.convolution(place, channels, self.num_heads)
        self.linear2 = nn.Linear(channels, embed_dim)
        for linear in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def mix(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict[str, Any] | None) -> Tensor:
        x = self.linear1(self.input_dropout_module(x))
        if self.glu:
            x = F.glu(x)
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.t().unsqueeze(2), 0)
        return self.linear2(self.conv(x, incremental_state))


@register_attention("light_conv")
class LightConvBlock(ConvolutionBlock):
    convolution = LightConv


@register_attention("dynamic_conv")
class DynamicConvBlock(ConvolutionBlock):
    convolution = DynamicConv
