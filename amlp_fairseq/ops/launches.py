"""Launch parameters of the kernels: warps of a program, positions and channels of a block.

Chosen by timing them on an H200, with inputs larger than its cache; ``python -m benchmarks.gpu_check --parts tuning``
times other parameters on the local device. In half precision ptxas spills no registers for sm_80 and sm_90; in float32
the fastest parameters spill some (``tests/unit/ops/test_compiled_kernels.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from amlp_fairseq.common.versions import installed
from amlp_fairseq.ops.backend import interpreting


class Launch(NamedTuple):
    """Launch parameters of a kernel.

    Attributes:
        warps: warps per program.
        positions: maximum number of positions in a block, at least 16.
        channels: maximum number of channels in a block, at least 16.
    """

    warps: int
    positions: int
    channels: int


#: Launch parameters by kernel and element size of x in bytes: 4, or 2 for half precision.
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
    # With 32 positions Triton 3.8 would spill 9 KiB; the parameters were not timed with Triton 3.8.
    ("cross_covariance, gradient", 4): Launch(4, 16 if (installed("triton") or (0, 0)) >= (3, 8) else 32, 64),
    ("cross_covariance, gradient", 2): Launch(4, 32, 64),
    ("cross_covariance, gradient, wide", 4): Launch(8, 32, 64),
}


#: Operand type of ``tl.dot`` by dtype of x. As in FlashAttention, weights are rounded to half precision.
FACTORS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.float32 if interpreting() else tl.bfloat16,  # the interpreter's bfloat16 arithmetic is wrong
}


def precision(dtype: torch.dtype) -> str:
    """Argument ``input_precision`` of ``tl.dot`` by dtype of x.

    float32 needs three products of tf32. float16 and bfloat16 values stored in float32 are exact in tf32. Triton
    supports both only on NVIDIA GPUs; other GPUs multiply in float32 without tensor cores.
    """
    if torch.version.hip:
        return "ieee"
    return "tf32x3" if dtype == torch.float32 else "tf32"
