"""Shards translated by actors of Ray Data, each of which holds the model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it calls every pool of actors an error (ray issue 53727)

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayActorError

from amlp_fairseq.cli.logs import readable
from amlp_fairseq.cli.shards import Job, Outcome, Shard, translate

#: How often a shard is tried again whose worker has died.
RETRIES = 3
#: Bytes of shared memory of an own Ray: only names of files pass through it.
MEMORY = 100 << 20


class Worker:
    """What an actor does: it translates the shards of rows, with ``source`` and ``output``, into their files."""

    def __init__(self, job: Job) -> None:
        with readable("translate", verbose=False):  # Ray prints what its workers print
            self.job, self.translator = job, job.translator()

    def __call__(self, row: dict[str, str]) -> dict[str, Any]:
        with readable("translate", verbose=False):
            return asdict(translate(self.translator, Shard(Path(row["source"]), Path(row["output"])), self.job))


def outcomes(job: Job, shards: list[Shard], workers: int) -> Iterator[Outcome]:
    """The outcome of each shard, as they end. A shard whose worker dies is given to another one.

    Args:
        workers: the number of actors: on the cluster that ``RAY_ADDRESS`` names, or on this machine. Each has a CPU
            core, and a GPU if the job's device is ``cuda``.

    Raises:
        ValueError: if there is nothing to run the actors on, or workers die again and again.
    """
    device = job.settings["device"]
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: with --workers, Ray gives each worker a GPU; --device cuda")
    needs = {"num_cpus": 1, "num_gpus": int(device == "cuda")}
    _connect(workers)
    try:
        if needs["num_gpus"] > ray.cluster_resources().get("GPU", 0):
            raise ValueError("--device cuda: Ray has found no GPU")
        rows = [{"source": str(shard.source), "output": str(shard.output)} for shard in shards]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            Worker,
            fn_constructor_args=(job,),
            compute=ActorPoolStrategy(size=min(workers, len(shards)), max_tasks_in_flight_per_actor=1),
            ray_remote_args_fn=lambda: {"max_task_retries": RETRIES},
            **needs,
        )
        for row in dataset.iter_rows():
            yield Outcome(**row)
    except RayActorError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"a worker has died {RETRIES + 1} times, or cannot start: {reason}") from None
    finally:
        ray.shutdown()


def _connect(workers: int) -> None:
    own = {} if os.environ.get("RAY_ADDRESS") else {"address": "local", "num_cpus": workers, "include_dashboard": False}
    ray.init(logging_level=logging.ERROR, **own, **({"object_store_memory": MEMORY} if own else {}))
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
