"""How the kernels are launched: warps of a program, and channels of a block.

Chosen so that ptxas spills no registers for sm_80 and sm_90 (``tests/unit/ops/test_compiled_kernels.py``); no device
has been asked which are the fastest. ``python -m benchmarks.gpu_check --parts tuning`` asks one, and prints them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Launch(NamedTuple):
    """``warps`` of a program, and the most ``channels`` of a block, at least 16."""

    warps: int
    channels: int


#: By kernel and by the bytes of a number of x: 4, or 2 for half precision.
LAUNCHES = {
    ("dynamic_conv", 4): Launch(4, 64),
    ("dynamic_conv", 2): Launch(4, 64),
    ("dynamic_conv, gradient of x", 4): Launch(4, 64),
    ("dynamic_conv, gradient of x", 2): Launch(4, 64),
    # Three products of tf32 need the parts of both factors at once: with 4 warps, or 64 channels at k = 97, they spill.
    ("dynamic_conv, gradient of weight", 4): Launch(8, 32),
    ("dynamic_conv, gradient of weight", 2): Launch(8, 32),
    ("cross_covariance, gradient", 4): Launch(4, 32),
    ("cross_covariance, gradient", 2): Launch(4, 32),
}


def full_precision() -> str:
    """The ``input_precision`` of products that are float32: three products of tf32, which only NVIDIA's GPUs have in
    Triton; elsewhere without tensor cores."""
    return "ieee" if torch.version.hip else "tf32x3"


def half_precision() -> str:
    """That of products of float16 and bfloat16 values in float32, which are exact in tf32."""
    return "ieee" if torch.version.hip else "tf32"
