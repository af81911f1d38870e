"""Changes of numpy: names that fairseq uses and current numpy does not have any more."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from amlp_fairseq.compat.changes import Stock

#: The names that fairseq uses: ``compat.long``.
NAMES = {"float": float, "int": int, "compat": types.SimpleNamespace(long=int)}


def missing() -> dict[str, Any]:
    """The names of :data:`NAMES` that this numpy does not have."""
    return {name: value for name, value in NAMES.items() if name not in vars(np)}


def percentile(stock: Stock, *args: object, **kwargs: object) -> Any:
    """Take ``method`` under its former name, ``interpolation``, too."""
    if "interpolation" in kwargs:
        kwargs["method"] = kwargs.pop("interpolation")
    return stock(*args, **kwargs)
