"""LightConv and DynamicConv as self-attentions (Wu et al. 2019, Sections 3 and 4, Figure 1)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.shared_options import KernelSizeOptions, OperatorOptions
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.window import WindowedAttention, WindowedLayer
from amlp_fairseq.ops.dynamic_conv import dynamic_conv, light_conv

_EPSILON = 1e-5


def _divided_by_norm(weight: Tensor, order: int) -> Tensor:
    """Weights (…, k) divided by their L1 or L2 norm."""
    norm = torch.linalg.vector_norm(weight, order, dim=-1, keepdim=True)
    return weight / (norm + _EPSILON)


#: Table 6: normalisations of the weights W over the kernel axis. The operators apply the softmax themselves.
NORMALIZATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda w: w,
    "none": lambda w: w,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "l1": lambda w: _divided_by_norm(w, 1),
    "l2": lambda w: _divided_by_norm(w, 2),
    "power": torch.square,
    "abs": torch.abs,
    "abs-l1": lambda w: _divided_by_norm(w, 1).abs(),
    "abs-l2": lambda w: _divided_by_norm(w, 2).abs(),
}


@dataclass
class ConvolutionOptions(KernelSizeOptions, OperatorOptions):
    """Options of 'light_conv' and 'dynamic_conv'."""

    encoder_conv_dim: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "channels of the encoder's convolutions (default: --encoder-embed-dim)"}
    )
    encoder_conv_heads: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "H, heads that share kernels (default: --encoder-attention-heads)"}
    )
    encoder_glu: int = field(default=1, metadata={"help": "1: gated linear unit before the convolution, 0: none"})
    decoder_conv_dim: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "channels of the decoder's convolutions (default: --decoder-embed-dim)"}
    )
    decoder_conv_heads: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "H, heads that share kernels (default: --decoder-attention-heads)"}
    )
    decoder_glu: int = field(default=1, metadata={"help": "1: gated linear unit before the convolution, 0: none"})
    weight_normalization: ChoiceEnum(list(NORMALIZATIONS)) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "normalisation of a convolution's weights over the kernel axis"}
    )
    weight_dropout: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "DropConnect of convolution weights (default: --attention-dropout)"}
    )
    input_dropout: float = field(default=0.0, metadata={"help": "dropout of a convolution block's inputs"})


class _Convolution(WindowedLayer):
    """Base class of the two convolutions: C channels in H heads, normalisation, DropConnect."""

    def __init__(self, spec: AttentionSpec, channels: int, heads: int) -> None:
        super().__init__(spec, channels)
        self.num_heads = heads
        self.normalization, self.backend = spec.options.weight_normalization, spec.options.operator_backend
        dropout = spec.options.weight_dropout
        self.weight_dropout = spec.options.attention_dropout if dropout is None else dropout

    def operator_options(self) -> dict[str, Any]:
        """Keyword arguments of the operators in ``ops/dynamic_conv``."""
        return {
            "step": self.words_per_step,
            "backend": self.backend,
            "softmax": self.normalization == "softmax",
            "dropout": self.weight_dropout if self.training else 0.0,
        }

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, kernel_size={self.kernel_size}, padding_l={self.padding_l}, num_heads={self.num_heads}, "
            f"normalization={self.normalization}, weight_dropout={self.weight_dropout}"
        )


class LightConv(_Convolution):
    """Lightweight convolution (Section 3); name and shape of ``weight`` (H, 1, k) are those in fairseq's
    LightweightConv."""

    def __init__(self, spec: AttentionSpec, channels: int, heads: int) -> None:
        super().__init__(spec, channels, heads)
        self.weight = nn.Parameter(torch.empty(heads, 1, self.kernel_size))
        nn.init.xavier_uniform_(self.weight)

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        weight = NORMALIZATIONS[self.normalization](self.weight.squeeze(1))
        return light_conv(inputs, weight, padding_l, length=x.size(0), **self.operator_options())


class DynamicConv(_Convolution):
    """Dynamic convolution (Section 4); name and shape of ``weight_linear``, W^Q, are those in fairseq's DynamicConv."""

    def __init__(self, spec: AttentionSpec, channels: int, heads: int) -> None:
        super().__init__(spec, channels, heads)
        self.weight_linear = nn.Linear(channels, heads * self.kernel_size, bias=False)

    def convolve(self, x: Tensor, inputs: Tensor, padding_l: int) -> Tensor:
        weight = self.weight_linear(x).unflatten(-1, (self.num_heads, self.kernel_size))
        return dynamic_conv(inputs, NORMALIZATIONS[self.normalization](weight), padding_l, **self.operator_options())


class ConvolutionBlock(WindowedAttention):
    """Block of Figure 1: linear map d → 2d, gated linear unit, convolution, linear map d → d. Without the gated linear
    unit the first map is d → d."""

    convolution: type[_Convolution]

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        embed_dim = spec.option("embed_dim")
        channels = spec.count(f"{spec.side}_conv_dim") or embed_dim
        self.num_heads = spec.count(f"{spec.side}_conv_heads") or spec.option("attention_heads")
        if channels % self.num_heads:
            raise ValueError(
                f"--{spec.side}-conv-heads {self.num_heads} (default: --{spec.side}-attention-heads) does not divide "
                f"the {channels} channels of --{spec.side}-conv-dim (default: --{spec.side}-embed-dim)"
            )
        self.head_dim = channels // self.num_heads
        self.input_dropout_module = FairseqDropout(spec.options.input_dropout, module_name=type(self).__name__)
        self.glu = bool(spec.option("glu"))
        self.linear1 = nn.Linear(embed_dim, 2 * channels if self.glu else channels)
        self.conv = self.convolution(spec, channels, self.num_heads)
        self.linear2 = nn.Linear(channels, embed_dim)
        for linear in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "convolution",
            "channels": self.conv.channels,
            "heads": self.num_heads,
            "kernel_size": self.conv.kernel_size,
            "dynamic": isinstance(self.conv, DynamicConv),
            "glu": self.glu,
            "normalization": str(self.conv.normalization),  # of a command line it is an Enum
        }

    def project_in(self, x: Tensor) -> Tensor:
        x = self.linear1(self.input_dropout_module(x))
        return F.glu(x) if self.glu else x

    def project_out(self, x: Tensor) -> Tensor:
        return self.linear2(x)


@register_attention("light_conv", options=ConvolutionOptions)
class LightConvBlock(ConvolutionBlock):
    """Block with a lightweight convolution."""

    convolution = LightConv


@register_attention("dynamic_conv", options=ConvolutionOptions)
class DynamicConvBlock(ConvolutionBlock):
    """Block with a dynamic convolution."""

    convolution = DynamicConv
