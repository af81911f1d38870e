"""Attentions other than softmax attention, in C++ (``ops/cpu_layers``)."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.abc import ABCAttention
from amlp_fairseq.attention.amlp import ACTIVATIONS, AMLPCov, AMLPPQuery
from amlp_fairseq.attention.average import AverageAttention
from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.dynamic_conv import NORMALIZATIONS, ConvolutionBlock, DynamicConv, LightConv
from amlp_fairseq.attention.multihead import KVMemory
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
LinearAttention: TypeAlias = ABCAttention | AMLPCov | AMLPPQuery


def compiled_self_attention(attention: Attention) -> torch.ScriptObject | None:
    """Average attention or a convolution for ``compiled_layers``; None for another attention, or if one of its packed
    linear maps is not compiled."""
    if type(attention) is AverageAttention:
        return _average(attention)
    if isinstance(attention, ConvolutionBlock) and isinstance(attention.conv, (DynamicConv, LightConv)):
        return _convolution(attention, attention.conv)
    return None


def compiled_linear_attention(attention: LinearAttention) -> Any:
    """One of ``LINEAR`` for ``compiled_layers``; None if it is causal (except ABC), has another activation than
    softmax, parameters that are not float32, or a linear map that is not compiled."""
    if any(parameter.dtype != torch.float32 for parameter in attention.parameters()):
        return None
    if isinstance(attention, ABCAttention):
        controls = attention.k_control.weight.detach(), attention.v_control.weight.detach()
        return compiled_bounded_memory(*controls, attention.scaling, attention.spec.pattern == "causal self")
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
    """The part of a cross-attention of ``LINEAR`` that projects a source, for ``compiled_layers``."""

    def __init__(self, attention: LinearAttention) -> None:
        self.attention, self.compiled = attention, compiled_linear_attention(attention)

    def project_source(self, source: Tensor, padding_mask: Tensor | None) -> KVMemory:
        """See ``MultiHeadAttention.project_source``."""
        k, v = self.attention.project(source, "kv")
        bias = None if padding_mask is None else padding_bias(padding_mask, k)
        return dict(zip(("k", "v", "bias"), self.compiled.source_memory(k, v, bias), strict=False))


def _average(attention: AverageAttention) -> torch.ScriptObject | None:
    inner, outer = (None, None) if attention.ffn is None else (attention.ffn[0], attention.ffn[3])
    linears = (inner, outer, attention.gates)
    maps = [None if linear is None else _compiled(linear) for linear in linears]
    if any(linear is not None and compiled is None for linear, compiled in zip(linears, maps, strict=True)):
        return None
    return compiled_average(maps[0], maps[1], maps[2], attention.head_dim, attention.spec.words_per_step)


def _convolution(attention: ConvolutionBlock, conv: DynamicConv | LightConv) -> torch.ScriptObject | None:
    kernels: torch.ScriptObject | Tensor | None
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


def _compiled(linear: nn.Module) -> torch.ScriptObject | None:
    """The C++ object of a packed map; None for other kinds."""
    packed = linear.packed() if isinstance(linear, PackedLinear) else None
    return packed.compiled if isinstance(packed, CompiledMap) else None
