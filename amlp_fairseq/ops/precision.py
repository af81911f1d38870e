"""The type in which sums are: float32 for inputs in half precision, which would overflow, else the inputs' own."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 for float64 inputs."""
    return torch.promote_types(x.dtype, torch.float32)


def at_least_float32(x: Tensor) -> Tensor:
    """``x``, of half precision as float32."""
    return x.to(sum_dtype(x))
