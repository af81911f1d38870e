"""Leftovers in fairseq that break it on current numpy, its ``--bf16`` that asks for a TPU, its ways of training on
fewer processes than were started, and checkpoints that are damaged when training is killed."""

from __future__ import annotations

import argparse
import functools
import os
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager


def install() -> None:
    """Apply the fixes; each does nothing where it is not needed."""
    _restore_numpy_names()
    options.parse_args_and_arch = _without_implied_tpu(options.parse_args_and_arch)
    distributed_utils.call_main = _with_all_processes(distributed_utils.call_main)
    PathManager.copy = staticmethod(_whole(PathManager.copy))


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


def _with_all_processes(call_main: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq ignores what torchrun says unless it sees several GPUs, so that every process trains a model of its own;
    and without GPUs it spawns no process at all and ends with status 0. Both become errors."""

    @functools.wraps(call_main)
    def checked(cfg: FairseqConfig, main: Callable[..., Any], **kwargs: Any) -> Any:
        distributed = cfg.distributed_training
        distributed_utils.infer_init_method(distributed)
        # fairseq, too, asks for all of these: WORLD_SIZE alone is what a cluster has left, not torchrun.
        by_torchrun = all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"))
        started = int(os.environ["WORLD_SIZE"]) if by_torchrun else 1
        joined = distributed.distributed_world_size
        if started not in (1, joined):
            raise ValueError(
                f"WORLD_SIZE {started}: torchrun has started {started} processes, --distributed-world-size is "
                f"{joined}; see scripts/train.sh for the flags that join them"
            )
        spawns = distributed.distributed_init_method is not None and not distributed.distributed_no_spawn
        if spawns and not torch.cuda.is_available():
            raise ValueError(
                f"--distributed-init-method {distributed.distributed_init_method} would train nothing: fairseq spawns "
                "a process for each GPU, and there is none; start the processes yourself, with --distributed-no-spawn"
            )
        return call_main(cfg, main, **kwargs)

    return checked


def _whole(copy: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq makes checkpoint_last.pt a copy of the newest checkpoint. Killed meanwhile it left half of it, from which
    training could not go on; now the copy takes its place when it is whole."""

    @functools.wraps(copy)
    def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not (overwrite and PathManager.supports_rename(dst_path)):
            return copy(src_path, dst_path, overwrite)
        copied = copy(src_path, dst_path + ".tmp", overwrite)
        PathManager.rename(dst_path + ".tmp", dst_path)
        return copied

    return copy_whole
