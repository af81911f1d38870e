"""Shards translated by actors of Ray Data, each of which holds the model."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayActorError
from ray.util.annotations import RayDeprecationWarning

from amlp_fairseq.common.logs import readable
from amlp_fairseq.translator.text_shards import Job, Outcome, Shard, translate

#: Number of new tries of a shard whose worker has died.
RETRIES = 3
#: Bytes of shared memory of an own Ray: only names of files pass through it.
MEMORY = 100 << 20


class Worker:
    """The work of an actor: it translates the shards of rows, with ``source`` and ``output``, into their files."""

    def __init__(self, job: Job) -> None:
        with readable("translate", verbose=False):  # Ray prints what its workers print
            self.job, self.translator = job, job.translator()

    def __call__(self, row: dict[str, str]) -> dict[str, Any]:
        with readable("translate", verbose=False):
            try:
                return asdict(translate(self.translator, Shard(Path(row["source"]), Path(row["output"])), self.job))
            except Exception:  # a GPU that is broken fails everything that comes after it: another process tries again
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)


def outcomes(job: Job, shards: list[Shard], workers: int) -> Iterator[Outcome]:
    """The outcome of each shard, as they end. One whose worker dies is given to another, :data:`RETRIES` times.

    Args:
        workers: the number of actors: on the cluster that ``RAY_ADDRESS`` names, or on this machine. Each has a CPU
            core, and a GPU if the job's device is ``cuda``.

    Raises:
        ValueError: for mistakes in the job, if there is nothing to run the actors on, or they cannot start.
    """
    device = job.settings["device"]
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: with --workers, Ray gives each worker a GPU; --device cuda")
    replace(job, settings={**job.settings, "device": "cpu"}).translator()  # finds mistakes before Ray starts
    _connect(workers)
    missing = {shard.source.name for shard in shards}
    try:
        if device == "cuda" and not ray.cluster_resources().get("GPU"):
            raise ValueError("--device cuda: Ray has found no GPU")
        worker: Any = Worker  # Ray's types know functions only
        rows = [{"source": str(shard.source), "output": str(shard.output)} for shard in shards]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RayDeprecationWarning)  # max_task_retries has no other place yet
            dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
                worker,
                fn_constructor_args=(job,),
                compute=ActorPoolStrategy(size=min(workers, len(shards)), max_tasks_in_flight_per_actor=1),
                num_cpus=1,
                num_gpus=int(device == "cuda"),
                max_task_retries=RETRIES,
            )
        for row in dataset.iter_rows():
            outcome = Outcome(**row)
            missing.remove(outcome.name)
            yield outcome
    except RayActorError as error:
        raise ValueError(f"the workers of Ray cannot start: {str(error).splitlines()[0]}") from None
    finally:
        ray.shutdown()
    for name in sorted(missing):
        yield Outcome(name, error=f"its worker has died {RETRIES + 1} times")


def _connect(workers: int) -> None:
    """Join the cluster of ``RAY_ADDRESS``, or start a Ray of one's own that has a CPU core for each worker."""
    own: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    own |= {"object_store_memory": MEMORY}
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(logging_level=logging.ERROR, **({} if address else own))
    except ConnectionError as error:
        raise ValueError(f"RAY_ADDRESS={address}: {error}: is it running, and is RAY_AUTH_MODE the same?") from None
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.max_errored_blocks = -1  # other shards go on
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it prints tracebacks of its own for them
