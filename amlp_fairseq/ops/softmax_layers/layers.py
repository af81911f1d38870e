"""What ``decoding/softmax_layers.py`` computes, in C++ (``kernels.cpp``): one call for all layers of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amlp_fairseq.ops.compiled import loaded

SOURCE = Path(__file__).with_name("kernels.cpp")


def compiled_layers(maps: Sequence[Any], norms: Sequence[nn.LayerNorm], heads: int, norm_first: bool) -> Any:
    """An object with the methods ``step`` and ``parallel``, which are ``forward`` of ``StepLayers`` and of
    ``ParallelLayers``; None if they have not been compiled (``amlp-fairseq compile``), or not for these weights.

    Args:
        maps: all of them ``Int8Map``, or all of them ``OneDnnMap``, with biases; see ``SoftmaxLayers``.
        norms, heads, norm_first: see there.
    """
    int8 = hasattr(maps[0], "zero")
    weights = [norm.weight.detach() for norm in norms]
    if any(weight.dtype != torch.float32 for weight in weights) or not (int8 or maps[0].dtype == torch.float32):
        return None
    if not loaded(SOURCE):
        return None
    kind = torch.classes.amlp_fairseq.SoftmaxLayers
    layers = kind(weights, [norm.bias.detach() for norm in norms], norms[0].eps, heads, norm_first)
    for each in maps:
        if int8:
            weight, _ = torch.ops.quantized.linear_unpack(each.packed)
            scales = weight.q_per_channel_scales().float()
            layers.add_int8(each.packed, weight.int_repr(), scales, each.bias, each.step, each.zero)
        else:
            layers.add_float(each.plain, each.packed, each.bias)
    return layers
