"""Attentions that are not softmax attention, in C++ (``ops/cpu_layers``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.abc import ABCAttention
from amlp_fairseq.attention.amlp import ACTIVATIONS, AMLPCov, AMLPPQuery
from amlp_fairseq.attention.average import AverageAttention
from amlp_fairseq.attention.dynamic_conv import NORMALIZATIONS, ConvolutionBlock, DynamicConv
from amlp_fairseq.attention.multihead import Memory
from amlp_fairseq.attention.softmax import padding_bias
from amlp_fairseq.decoding.packed_linear import CompiledMap, PackedLinear
from amlp_fairseq.ops.cpu_layers import (
    compiled_amlp_cov,
    compiled_amlp_pquery,
    compiled_average,
    compiled_bounded_memory,
    compiled_convolution,
)

#: Attentions of linear cost with the linear maps of softmax attention, see ``compiled_linear_attention``.
LINEAR = (ABCAttention, AMLPCov, AMLPPQuery)


def compiled_self_attention(attention: Any) -> Any:
    """Average attention or a convolution for ``compiled_layers``; None for another attention, or where one of its
    packed linear maps has not been compiled."""
    if type(attention) is AverageAttention:
        return _average(attention)
    return _convolution(attention, attention.conv) if isinstance(attention, ConvolutionBlock) else None


def compiled_linear_attention(attention: Any) -> Any:
    """One of ``LINEAR`` for ``compiled_layers``; None for a causal one but ABC, or where it has another activation than
    softmax, or parameters that are not float32 or whose linear map has not been compiled."""
    if any(parameter.dtype != torch.float32 for parameter in attention.parameters()):
        return None
    if isinstance(attention, ABCAttention):
        of_k, of_v = (each.weight.detach() for each in (attention.k_control, attention.v_control))
        return compiled_bounded_memory(of_k, of_v, attention.scaling, attention.spec.pattern == "causal self")
    if attention.spec.causal or attention.activation is not ACTIVATIONS["softmax"]:
        return None
    shared = attention.c_q.detach(), attention.c_k.detach(), attention.scaling, attention.norm
    if isinstance(attention, AMLPCov):
        ones = torch.ones(3, attention.num_heads)
        temperatures = ones if attention.temperature is None else attention.temperature.detach()
        return compiled_amlp_cov(*shared, temperatures, attention.normalize, attention.published)
    fuse = _compiled(attention.fuse)
    if fuse is None:
        return None
    return compiled_amlp_pquery(*shared, fuse, attention.beta, attention.bias_correction, attention.pool_scaling)


class CompiledMemory:
    """The part of a cross-attention of ``LINEAR`` that reads a source, for ``compiled_layers``."""

    def __init__(self, attention: Any) -> None:
        self.attention, self.compiled = attention, compiled_linear_attention(attention)

    def project_source(self, source: Tensor, padding_mask: Tensor | None) -> Memory:
        """See ``MultiHeadAttention.project_source``."""
        k, v = self.attention.project(source, "kv")
        bias = None if padding_mask is None else padding_bias(padding_mask, k)
        return dict(zip(("k", "v", "bias"), self.compiled.source_memory(k, v, bias), strict=False))


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
