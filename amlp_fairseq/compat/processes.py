"""fairseq's ways of training on fewer processes than were started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils

#: What torchrun sets, and fairseq looks for; WORLD_SIZE alone is what a cluster has left.
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def started_by_torchrun(environment: Mapping[str, str]) -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(environment["WORLD_SIZE"]) if all(name in environment for name in TORCHRUN) else 1


def check_processes(call_main: Any, cfg: FairseqConfig, main: Callable[..., Any], **kwargs: Any) -> Any:
    """Two errors in place of trainings that are not what was asked for.

    fairseq ignores torchrun unless it sees several GPUs, and every process trains a model of its own; and without GPUs
    it spawns no process at all and ends with status 0."""
    distributed = cfg.distributed_training
    distributed_utils.infer_init_method(distributed)
    started, joined = started_by_torchrun(os.environ), distributed.distributed_world_size
    if started not in (1, joined):
        raise ValueError(
            f"WORLD_SIZE {started}: torchrun has started {started} processes, --distributed-world-size is "
            f"{joined}; amlp-fairseq train gives the flags that join them"
        )
    spawns = distributed.distributed_init_method is not None and not distributed.distributed_no_spawn
    if spawns and not torch.cuda.is_available():
        raise ValueError(
            f"--distributed-init-method {distributed.distributed_init_method} would train nothing: fairseq spawns "
            "a process for each GPU, and there is none; start the processes yourself, with --distributed-no-spawn"
        )
    return call_main(cfg, main, **kwargs)
