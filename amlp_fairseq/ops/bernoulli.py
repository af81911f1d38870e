"""Bernoulli samples on a CPU, from two random bytes each: most of what dropout costs there.

PyTorch draws eight bytes a sample from a Mersenne Twister, one sample after the other, where its MKL does not do it on
Intel's processors. Dropout then takes a fifth of the time of an update of a small Transformer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

#: Two bytes have as many values.
VALUES = 1 << 16


def bernoulli_(tensor: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    """Fill a tensor on the CPU with ones, each with the probability p to the nearest 1 / 65536, and zeros.

    Args:
        tensor: of any shape and type.
        p: between 0 and 1.
        generator: gives the seed of each call, by default PyTorch's own.

    Raises:
        ValueError: if p is not a probability.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p {p}: choose a probability, from 0 to 1")
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator).item()
    words = np.random.SFC64(int(seed)).random_raw(-(-tensor.numel() // 4))
    drawn = words.view(np.uint16)[: tensor.numel()]
    return tensor.copy_(torch.from_numpy(drawn < round(p * VALUES)).view(tensor.shape))


@contextmanager
def faster_bernoulli() -> Iterator[None]:
    """Let PyTorch, in its dropout above all, sample so on CPUs."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is another implementation
        library.impl("bernoulli_.float", bernoulli_, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
