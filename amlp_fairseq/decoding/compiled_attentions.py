"""Self-attentions that are not softmax attention, in C++ (``ops/cpu_layers``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from amlp_fairseq.attention.average import AverageAttention
from amlp_fairseq.attention.dynamic_conv import NORMALIZATIONS, ConvolutionBlock, DynamicConv
from amlp_fairseq.decoding.packed_linear import CompiledMap, PackedLinear
from amlp_fairseq.ops.cpu_layers import compiled_average, compiled_convolution


def compiled_self_attention(attention: Any) -> Any:
    """Average attention or a convolution for ``compiled_layers``; None for another attention, or where one of its
    packed linear maps has not been compiled."""
    if type(attention) is AverageAttention:
        return _average(attention)
    return _convolution(attention, attention.conv) if isinstance(attention, ConvolutionBlock) else None


def _average(attention: AverageAttention) -> Any:
    inner, outer = (None, None) if attention.ffn is None else (attention.ffn[0], attention.ffn[3])
    linears = (inner, outer, attention.gates)
    inner, outer, gates = (None if linear is None else _compiled(linear) for linear in linears)
    if any(linear is not None and each is None for linear, each in zip(linears, (inner, outer, gates), strict=True)):
        return None
    return compiled_average(inner, outer, gates, attention.head_dim, attention.spec.words_per_step)


def _convolution(attention: ConvolutionBlock, conv: Any) -> Any:
    if isinstance(conv, DynamicConv):
        kernels = _compiled(conv.weight_linear) if conv.normalization in ("softmax", "none") else None
    else:
        weight = conv.weight.detach().squeeze(1)
        kernels = NORMALIZATIONS[conv.normalization](weight).contiguous() if weight.dtype == torch.float32 else None
    first, last = _compiled(attention.linear1), _compiled(attention.linear2)
    if first is None or last is None or kernels is None:
        return None
    sizes = conv.channels, conv.num_heads, conv.kernel_size, conv.words_per_step, conv.padding_l
    return compiled_convolution(
        first, last, kernels, *sizes, glu=attention.glu, softmax=conv.normalization == "softmax"
    )


def _compiled(linear: nn.Module) -> Any:
    """What ``compiled_map`` has given for a packed map; None if it is of another kind."""
    packed = linear.packed() if isinstance(linear, PackedLinear) else None
    return packed.compiled if isinstance(packed, CompiledMap) else None
