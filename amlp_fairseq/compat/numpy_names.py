"""Names that fairseq uses and current numpy does not have any more."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np


def restore() -> None:
    """np.float (dynamic_crf_layer), np.int (data_utils), np.compat.long (token_block_dataset, language_pair_dataset),
    np.percentile(interpolation=) (data_utils); each only where it is missing."""
    for name, value in (("float", float), ("int", int), ("compat", types.SimpleNamespace(long=int))):
        if name not in vars(np):
            setattr(np, name, value)
    percentile: Callable[..., Any] = np.percentile

    @functools.wraps(percentile)
    def percentile_with_interpolation(*args: Any, **kwargs: Any) -> Any:
        if "interpolation" in kwargs:
            kwargs["method"] = kwargs.pop("interpolation")
        return percentile(*args, **kwargs)

    np.percentile = percentile_with_interpolation  # type: ignore[assignment]
