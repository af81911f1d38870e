"""How the kernels are launched: warps of a program, and the positions and channels of a block.

Chosen by timing them on an H200, with inputs larger than its cache; ``python -m benchmarks.gpu_check --parts tuning``
times others on a device at hand. In half precision ptxas spills no registers for sm_80 and sm_90, in float32 the
fastest spill some (``tests/unit/ops/test_compiled_kernels.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from amlp_fairseq.common.versions import installed
from amlp_fairseq.ops.backend import interpreting


class Launch(NamedTuple):
    """``warps`` of a program, and the most ``positions`` and ``channels`` of a block, at least 16."""

    warps: int
    positions: int
    channels: int


#: By kernel and by the bytes of a number of x: 4, or 2 for half precision.
LAUNCHES = {
    ("dynamic_conv", 4): Launch(4, 32, 64),
    ("dynamic_conv", 2): Launch(2, 32, 64),
    ("dynamic_conv, gradient of x", 4): Launch(4, 32, 64),
    ("dynamic_conv, gradient of x", 2): Launch(4, 32, 64),
    ("dynamic_conv, gradient of weight", 4): Launch(2, 32, 32),
    ("dynamic_conv, gradient of weight", 2): Launch(2, 32, 64),
    ("light_conv, gradients", 4): Launch(4, 32, 64),
    ("light_conv, gradients", 2): Launch(4, 32, 64),
    ("cross_covariance", 4): Launch(4, 32, 64),
    ("cross_covariance", 2): Launch(4, 32, 128),
    ("cross_covariance, wide", 4): Launch(16, 32, 128),
    # Triton 3.8, with which none of these has been timed, would spill 9 KiB with 32 positions.
    ("cross_covariance, gradient", 4): Launch(4, 16 if (installed("triton") or (0, 0)) >= (3, 8) else 32, 64),
    ("cross_covariance, gradient", 2): Launch(4, 32, 64),
    ("cross_covariance, gradient, wide", 4): Launch(8, 32, 64),
}


#: The type of a product's factors, by that of x: weights are rounded to half precision as FlashAttention's are.
FACTORS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.float32 if interpreting() else tl.bfloat16,  # bfloat16 arithmetic is wrong there
}


def precision(dtype: torch.dtype) -> str:
    """The ``input_precision`` of products, by the type of x: for float32 three products of tf32; tf32 for float16 and
    bfloat16 values in float32, which are exact in it. Triton has both for NVIDIA's GPUs only: elsewhere without tensor
    cores."""
    if torch.version.hip:
        return "ieee"
    return "tf32x3" if dtype == torch.float32 else "tf32"
