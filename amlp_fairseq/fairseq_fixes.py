"""Leftovers in fairseq that break it on current numpy, and its ``--bf16`` that asks for a TPU."""

from __future__ import annotations

import argparse
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from fairseq import options


def install() -> None:
    """Apply the fixes; each does nothing where it is not needed."""
    _restore_numpy_names()
    options.parse_args_and_arch = _without_implied_tpu(options.parse_args_and_arch)


def _restore_numpy_names() -> None:
    """np.float (dynamic_crf_layer), np.int (data_utils), np.compat.long (token_block_dataset, language_pair_dataset),
    np.percentile(interpolation=) (data_utils)."""
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


def _without_implied_tpu(parse: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's parser sets ``tpu`` whenever ``--bf16`` is given; only ``--tpu`` itself should."""

    @functools.wraps(parse)
    def parse_args_and_arch(parser: argparse.ArgumentParser, input_args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        result = parse(parser, input_args, *rest, **kwargs)
        args = result[0] if isinstance(result, tuple) else result
        if getattr(args, "bf16", False):
            asked, _ = parser.parse_known_args(input_args)
            args.tpu = getattr(asked, "tpu", False)
        return result

    return parse_args_and_arch
