"""Tolerances that follow from types, the lengths of sums and their condition, or are measured: none is chosen, so that
they hold on every processor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: The largest relative error of rounding a number to the nearest one of a type.
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-9}

#: For ``torch.testing.assert_close``: two orders of the sums of a small model in float32, or in float64 where fairseq's
#: softmax, scores and some of its layers are in float32. Each of the some hundred numbers that have come together in an
#: output is off by a unit of itself.
FLOAT32 = {"atol": 128 * UNIT[torch.float32], "rtol": 128 * UNIT[torch.float32]}


def of_scores(words: float = 1) -> float:
    """Bound how far two implementations of the models of ``toy`` in float32 are apart in a sum of so many
    log-probabilities: each is up to 20 in size, after layers whose sums have some hundred terms. Scores that are
    divided by the length are of one word."""
    return words * 20 * 100 * UNIT[torch.float32]


def printed(digits: int) -> float:
    """Half a unit of the last of so many decimals, with the rounding of the number in float64."""
    return 0.5 * 10.0**-digits * (1 + 1e-9) + 1e-12


def of_product(x: Tensor, weight: Tensor, bias: Tensor | None, decode_dtype: str | None, vnni: bool = True) -> Tensor:
    """Bound the error of a linear map with weights in ``decode_dtype``, for each output (…, out).

    A sum of n float32 products, in whatever order, is off by at most n + 1 units of the sum of their magnitudes (Higham
    2002, 3.1). In half precision inputs, weights, bias and outputs are rounded, too. In int8 inputs are off by half a
    step of their row, weights by half a step of their output.

    Args:
        x: (…, in).
        weight: (out, in).
        bias: (out,).
        decode_dtype: one of ``packed_linear.DECODE_DTYPES``; None: float32.
        vnni: whether int8 inputs have 255 steps, and not 127.
    """
    x, weight = x.double(), weight.double()
    offset = torch.zeros(len(weight)).double() if bias is None else bias.double().abs()
    magnitude = x.abs() @ weight.abs().t() + offset
    bound = (x.size(-1) + 1) * UNIT[torch.float32] * magnitude
    if decode_dtype in ("bfloat16", "float16"):
        unit = UNIT[getattr(torch, decode_dtype)]
        return bound + (2 * unit + unit**2) * magnitude + unit * (magnitude + bound)
    if decode_dtype == "int8":
        x_step = x.abs().amax(dim=-1, keepdim=True) / (127 if vnni else 63)
        weight_step = weight.abs().amax(dim=1) / 127
        inputs = x_step * weight.abs().sum(dim=1) / 2
        weights = x.abs().sum(dim=-1, keepdim=True) * weight_step / 2
        return bound + inputs + weights + x.size(-1) * x_step * weight_step / 4
    return bound


def measured(model: Any, run: Callable[[Any], Tensor]) -> float:
    """Measure how far a model in float32 may be from another implementation of it.

    Its own error is the largest difference from itself in float64. Another one has an error of about that size, so that
    both may be twice as far apart; another order of additions may double that.

    Args:
        model: in float32.
        run: computes something of the model, or of its copy in float64.
    """
    exact = run(copy.deepcopy(model).double())
    error = float((run(model).double() - exact).abs().max())
    return 4 * max(error, UNIT[torch.float32] * float(exact.abs().max()))
