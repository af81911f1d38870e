"""C++ implementations (``kernels.cpp``) of ``decoding/packed_linear.py`` and ``decoding/fused_layers.py``."""

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
    weight: Tensor, bias: Tensor | None, scales: Tensor | None = None, step_size: float = 0.0, zero_point: int = 0
) -> Any:
    """Linear map whose method ``product`` (x, relu) computes ``packed_linear.pack`` for x (…, in) in float32; None if
    the C++ code is not compiled (``amlp-fairseq compile``), or the processor does not support these weights.

    Args:
        weight: W (out, in), float32 or int8.
        bias: b (out,) float32.
        scales: scales of int8 weights, (out,); None for float32.
        step_size: step size of the inputs of int8 weights.
        zero_point: zero point of the inputs of int8 weights.
    """
    if not loaded(SOURCE) or (scales is not None and not torch.ops.amlp_fairseq.has_int8()):
        return None
    bias = torch.zeros(len(weight)) if bias is None else bias
    return torch.classes.amlp_fairseq.LinearMap(weight, bias, scales, step_size, zero_point)


def compiled_embedding(table: Tensor) -> Any:
    """Function (words, slots, table, scale, encodings, starts) that computes ``StepDecoder.embed``; None if the C++
    code is not compiled, or the table is not float32 on a CPU."""
    usable = table.dtype == torch.float32 and table.is_cpu and loaded(SOURCE)
    return torch.ops.amlp_fairseq.embed if usable else None


def compiled_layers(
    maps: Sequence[torch.ScriptObject],
    norms: Sequence[nn.LayerNorm],
    heads: int,
    norm_first: bool,
    self_attentions: Sequence[torch.ScriptObject] = (),
    linear: Mapping[int, torch.ScriptObject] = MappingProxyType({}),
) -> Any:
    """Layers with the methods ``step`` and ``forward_full``, which compute ``forward`` of ``StepLayers`` and of
    ``FullLayers``; None if the norms are not float32.

    Args:
        maps: results of ``compiled_map``, two per block.
        norms: norms of the blocks.
        heads: number of attention heads.
        norm_first: pre-norm layers.
        self_attentions: the layers' self-attentions if they are not softmax attention: results of ``compiled_average``
            or ``compiled_convolution``; their blocks have no ``maps``.
        linear: attentions of linear cost by the indices of their blocks: results of ``compiled_bounded_memory``,
            ``compiled_amlp_cov`` or ``compiled_amlp_pquery``; their blocks have ``maps`` as in softmax attention.
    """
    weights = [norm.weight.detach() for norm in norms]
    if any(weight.dtype != torch.float32 for weight in weights):
        return None
    biases = [norm.bias.detach() for norm in norms]
    classes = torch.classes.amlp_fairseq
    attentions = [*self_attentions], [*linear.values()], [*linear]
    return classes.SoftmaxLayers([*maps], weights, biases, norms[0].eps, heads, norm_first, *attentions)


def compiled_average(
    inner: torch.ScriptObject | None,
    outer: torch.ScriptObject | None,
    gates: torch.ScriptObject | None,
    width: int,
    z: int,
) -> torch.ScriptObject:
    """``AverageAttention`` for ``compiled_layers``.

    Args:
        inner: first map of the feed-forward network, from ``compiled_map``; None without the network.
        outer: second map of the feed-forward network.
        gates: map of the gates; None without gates.
        width: C.
        z: words per step.
    """
    return torch.classes.amlp_fairseq.SelfAttention.average(inner, outer, gates, width, z)


def compiled_convolution(
    first: torch.ScriptObject,
    last: torch.ScriptObject,
    kernels: torch.ScriptObject | Tensor,
    *sizes: int,
    glu: bool,
    softmax: bool,
) -> torch.ScriptObject:
    """``ConvolutionBlock`` for ``compiled_layers``.

    Args:
        first: map before the convolution, from ``compiled_map``.
        last: map after the convolution, from ``compiled_map``.
        kernels: map to the kernels, (…, C) to (…, H·k), from ``compiled_map``; or kernels (H, k) for all words.
        sizes: C, H, k, words per step, and the number of inputs to the left of an output if not causal.
        glu: gated linear unit after the first map.
        softmax: normalise the kernels by a softmax.
    """
    dynamic, static = (None, kernels) if isinstance(kernels, Tensor) else (kernels, None)
    convolution = torch.classes.amlp_fairseq.SelfAttention.convolution
    return convolution(first, last, dynamic, static, *sizes, glu, softmax)


def compiled_bounded_memory(k_control: Tensor, v_control: Tensor, scaling: float, causal: bool) -> torch.ScriptObject:
    """``ABCAttention`` for ``compiled_layers``.

    Args:
        k_control: W_φ of the keys, (c, d_h).
        v_control: W_φ of the values, (c, d_h).
        scaling: 1/√d_h.
        causal: True for "causal self" attention of one word a step.
    """
    return torch.classes.amlp_fairseq.LinearAttention.bounded_memory(k_control, v_control, scaling, causal)


def compiled_amlp_cov(
    c_q: Tensor, c_k: Tensor, scaling: float, norm: nn.LayerNorm | None, temperatures: Tensor, *switches: bool
) -> torch.ScriptObject:
    """``AMLPCov`` for ``compiled_layers``.

    Args:
        c_q: C_q (H, c, d_h).
        c_k: C_k (H, c, d_h).
        scaling: factor of the argument of σ₁, which is softmax.
        norm: norm of the heads' outputs, if there is one.
        temperatures: temperatures of the covariances, (3, H).
        switches: normalise the channels; ``--amlp-published-contraction``.
    """
    create = torch.classes.amlp_fairseq.LinearAttention.amlp_cov
    return create(c_q, c_k, scaling, *_norm_of(norm), temperatures, *switches)


def compiled_amlp_pquery(
    c_q: Tensor, c_k: Tensor, scaling: float, norm: nn.LayerNorm | None, fuse: torch.ScriptObject, beta: float,
    corrected: bool, pool_scaling: float,
) -> torch.ScriptObject:  # fmt: skip
    """``AMLPPQuery`` for ``compiled_layers``.

    Args:
        c_q: C_q (H, c, d_h).
        c_k: C_k (H, c, d_h).
        scaling: factor of the argument of σ₁, which is softmax.
        norm: norm of the heads' outputs, if there is one.
        fuse: map with W_o and b, from ``compiled_map``.
        beta: β.
        corrected: ``--amlp-ema-bias-correction``.
        pool_scaling: factor of the arguments of the softmaxes over positions.
    """
    create = torch.classes.amlp_fairseq.LinearAttention.amlp_pquery
    return create(c_q, c_k, scaling, *_norm_of(norm), fuse, beta, corrected, pool_scaling)


def _norm_of(norm: nn.LayerNorm | None) -> tuple[Tensor | None, Tensor | None, float]:
    """Weight, bias and ε of a norm; (None, None, 0) without a norm."""
    return (None, None, 0.0) if norm is None else (norm.weight.detach(), norm.bias.detach(), norm.eps)


def compiled_decoder(
    layers: torch.ScriptObject,
    table: Tensor,
    scale: float,
    starts: int,
    norm: nn.LayerNorm | None,
    output: torch.ScriptObject,
) -> Any:
    """Decoder whose method ``search`` makes steps of a beam search, see ``Decoder`` in ``decoder.h``.

    Args:
        layers: result of ``compiled_layers``.
        table: embeddings, (V, C).
        scale: factor of the embeddings.
        starts: number of slots with start symbols, which have no word embedding.
        norm: norm after the layers, if there is one.
        output: map to logits, from ``compiled_map``.
    """
    return torch.classes.amlp_fairseq.Decoder(layers, table, scale, starts, *_norm_of(norm), output)
