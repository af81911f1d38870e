"""Changes of ``fairseq.distributed``: no training on fewer processes than were started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from torch.multiprocessing import ProcessRaisedException

from amlp_fairseq.compat.changes import Stock
from amlp_fairseq.compat.trainer import Diverged

#: Variables that torchrun sets and fairseq reads; WORLD_SIZE alone is what a cluster has left.
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def started_by_torchrun(environment: Mapping[str, str]) -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(environment["WORLD_SIZE"]) if all(name in environment for name in TORCHRUN) else 1


def call_main(stock: Stock, cfg: FairseqConfig, main: Callable[..., Any], **kwargs: object) -> Any:
    """Refuse launches that would train something else than was asked for: stock ignores torchrun unless it sees several
    GPUs, so that every process trains a model of its own, and without GPUs it spawns no process and ends with status 0.
    Raise :class:`Diverged` also where stock has spawned a process for each GPU."""
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
    try:
        return stock(cfg, main, **kwargs)
    except ProcessRaisedException as error:
        if (message := diverged_message(error)) is None:
            raise
        raise Diverged(message) from None


def diverged_message(error: ProcessRaisedException) -> str | None:
    """The message of a process that has ended with :class:`Diverged`; None for another error."""
    line, name = str(error).strip().rpartition("\n")[2], f"{Diverged.__module__}.{Diverged.__qualname__}: "
    return line.removeprefix(name) if line.startswith(name) else None
