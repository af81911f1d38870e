"""What ``decoding/packed_linear.py`` and ``decoding/fused_layers.py`` compute, in C++ (``kernels.cpp``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from amlp_fairseq.ops.compiled import loaded

SOURCE = Path(__file__).with_name("kernels.cpp")


def compiled_map(
    weight: Tensor, bias: Tensor | None, scales: Tensor | None = None, step: float = 0.0, zero: int = 0
) -> Any:
    """An object whose method ``product`` (x, relu) is the map of ``packed_linear.pack`` for x (…, in) in float32; None
    if that has not been compiled (``amlp-fairseq compile``), or not for such weights on this processor.

    Args:
        weight: W (out, in), float32 or int8.
        bias: b (out,) float32.
        scales: of int8 weights, (out,); None for float32.
        step, zero: step size and zero point of the inputs of int8 weights; of no meaning for float32.
    """
    if not loaded(SOURCE) or (scales is not None and not torch.ops.amlp_fairseq.has_int8()):
        return None
    bias = torch.zeros(len(weight)) if bias is None else bias
    return torch.classes.amlp_fairseq.LinearMap(weight, bias, scales, step, zero)


def compiled_embedding(table: Tensor) -> Any:
    """``StepDecoder.embed`` as a function of words, slots, ``table``, scale, encodings and starts; None if that has not
    been compiled, or for a table of another type than float32."""
    usable = table.dtype == torch.float32 and table.is_cpu and loaded(SOURCE)
    return torch.ops.amlp_fairseq.embed if usable else None


def compiled_layers(
    maps: Sequence[Any],
    norms: Sequence[nn.LayerNorm],
    heads: int,
    norm_first: bool,
    others: Sequence[Any] = (),
    linear: Mapping[int, Any] = MappingProxyType({}),
) -> Any:
    """An object with the methods ``step`` and ``forward_full``, which are ``forward`` of ``StepLayers`` and of
    ``FullLayers``; None for norms of another type than float32.

    Args:
        maps: what ``compiled_map`` has given.
        norms, heads, norm_first: see ``SoftmaxLayers``.
        others: the layers' self-attentions where they are not softmax attention, what ``compiled_average`` or
            ``compiled_convolution`` has given; these have no maps among ``maps``.
        linear: by the numbers of their blocks attentions of linear cost, which have maps as softmax attention has: what
            ``compiled_bounded_memory``, ``compiled_amlp_cov`` or ``compiled_amlp_pquery`` has given.
    """
    weights = [norm.weight.detach() for norm in norms]
    if any(weight.dtype != torch.float32 for weight in weights):
        return None
    biases = [norm.bias.detach() for norm in norms]
    classes = torch.classes.amlp_fairseq
    attentions = [*others], [*linear.values()], [*linear]
    return classes.SoftmaxLayers([*maps], weights, biases, norms[0].eps, heads, norm_first, *attentions)


def compiled_average(inner: Any, outer: Any, gates: Any, width: int, z: int) -> Any:
    """``AverageAttention`` for ``compiled_layers``.

    Args:
        inner, outer, gates: what ``compiled_map`` has given, of its feed-forward network and its gates; None where it
            has none.
        width, z: C and words per step.
    """
    return torch.classes.amlp_fairseq.SelfAttention.average(inner, outer, gates, width, z)


def compiled_convolution(first: Any, last: Any, kernels: Any, *sizes: int, glu: bool, softmax: bool) -> Any:
    """``ConvolutionBlock`` for ``compiled_layers``.

    Args:
        first, last: what ``compiled_map`` has given, of its two linear maps.
        kernels: likewise, of the map that makes them, (…, C) to (…, H·k); or a tensor (H, k), the same for all words.
        sizes: C, H, k, words per step, and the inputs to the left of an output where it is not causal.
        glu: whether there is a gated linear unit behind the first map.
        softmax: whether a softmax normalises the kernels.
    """
    dynamic, static = (None, kernels) if isinstance(kernels, Tensor) else (kernels, None)
    convolution = torch.classes.amlp_fairseq.SelfAttention.convolution
    return convolution(first, last, dynamic, static, *sizes, glu, softmax)


def compiled_bounded_memory(of_k: Tensor, of_v: Tensor, scaling: float, causal: bool) -> Any:
    """``ABCAttention`` for ``compiled_layers``.

    Args:
        of_k, of_v: W_φ of keys and of values, (c, d_h).
        scaling: 1/√d_h.
        causal: whether it is "causal self" attention of one word a step.
    """
    return torch.classes.amlp_fairseq.LinearAttention.bounded_memory(of_k, of_v, scaling, causal)


def compiled_amlp_cov(
    c_q: Tensor, c_k: Tensor, scaling: float, norm: nn.LayerNorm | None, temperatures: Tensor, *switches: bool
) -> Any:
    """``AMLPCov`` for ``compiled_layers``.

    Args:
        c_q, c_k: (H, c, d_h).
        scaling: of the argument of σ₁, which is softmax.
        norm: behind the heads.
        temperatures: (3, H).
        switches: whether channels are normalised, and ``--amlp-published-contraction``.
    """
    create = torch.classes.amlp_fairseq.LinearAttention.amlp_cov
    return create(c_q, c_k, scaling, *_norm_of(norm), temperatures, *switches)


def compiled_amlp_pquery(
    c_q: Tensor, c_k: Tensor, scaling: float, norm: nn.LayerNorm | None, fuse: Any, beta: float, corrected: bool,
    pool_scaling: float,
) -> Any:  # fmt: skip
    """``AMLPPQuery`` for ``compiled_layers``.

    Args:
        c_q, c_k, scaling, norm: see ``compiled_amlp_cov``.
        fuse: what ``compiled_map`` has given, of W_o and b.
        beta, corrected: β, and ``--amlp-ema-bias-correction``.
        pool_scaling: of the arguments of the softmaxes over positions.
    """
    create = torch.classes.amlp_fairseq.LinearAttention.amlp_pquery
    return create(c_q, c_k, scaling, *_norm_of(norm), fuse, beta, corrected, pool_scaling)


def _norm_of(norm: nn.LayerNorm | None) -> tuple[Tensor | None, Tensor | None, float]:
    """Weight, bias and ε."""
    return (None, None, 0.0) if norm is None else (norm.weight.detach(), norm.bias.detach(), norm.eps)


def compiled_decoder(
    layers: Any, table: Tensor, scale: float, starts: int, norm: nn.LayerNorm | None, output: Any
) -> Any:
    """An object whose method ``search`` makes steps of a beam search, see ``Decoder`` in ``decoder.h``.

    Args:
        layers: what ``compiled_layers`` has given.
        table, scale, starts: see ``compiled_embedding``.
        norm: behind the layers.
        output: the map to logits, what ``compiled_map`` has given.
    """
    return torch.classes.amlp_fairseq.Decoder(layers, table, scale, starts, *_norm_of(norm), output)
