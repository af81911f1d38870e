"""Train a configuration with fairseq-train, on one processor or many.

    bash scripts/train.sh CONFIG DATA [--save-dir DIR] [options of fairseq-train]
    torchrun --nproc_per_node 8 --no-python bash scripts/train.sh CONFIG DATA …
    torchrun --nnodes 2 --node_rank 0 --nproc_per_node 8 --master_addr HOST --master_port PORT --no-python bash …

CONFIG is a file of configs/, DATA a folder of fairseq-preprocess. Further options win over the configuration's:
``--fp16``, ``--bf16``, ``--max-tokens`` to fit the memory, … ``--update-freq`` is set so that an update sees as many
tokens as in the paper. The command is printed before it runs; a run that was stopped continues.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from recipe import PLUGIN, Recipe, flags, load, quoted

from amlp_fairseq.compat.processes import started_by_torchrun


def world_flags(environment: Mapping[str, str], cpu: bool) -> list[str]:
    """What fairseq must be told about the processes that torchrun has started: by itself it finds them on GPUs only."""
    if started_by_torchrun(environment) == 1:
        return []
    words = ["--distributed-world-size", environment["WORLD_SIZE"], "--distributed-rank", environment["RANK"]]
    words += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    if cpu:
        return [*words, "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    return [*words, "--device-id", environment["LOCAL_RANK"]]


def update_frequency(tokens_per_update: int, world_size: int, max_tokens: int) -> int:
    """Batches that a process must accumulate so that an update sees about ``tokens_per_update`` tokens."""
    return max(1, round(tokens_per_update / (world_size * max_tokens)))


def command(recipe: Recipe, data: Path, save_dir: Path, rest: list[str], environment: Mapping[str, str]) -> list[str]:
    """The fairseq-train command; says on standard error what an update will see.

    Raises:
        ValueError: if the paper's number of tokens cannot be set because there is no ``--max-tokens``.
    """
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--max-tokens", type=int, default=recipe.train.get("max-tokens"))
    known.add_argument("--update-freq")
    known.add_argument("--cpu", action="store_true")
    known.add_argument("--distributed-world-size", type=int)
    given, _ = known.parse_known_args(rest)
    cpu = given.cpu or not torch.cuda.is_available()
    processes = started_by_torchrun(environment)
    if processes == 1:  # without torchrun, fairseq starts a process for each GPU itself
        processes = given.distributed_world_size or (1 if cpu else torch.cuda.device_count())
    words = ["fairseq-train", str(data), "--user-dir", str(PLUGIN), *flags(recipe.task, recipe.path)]
    words += [*flags(recipe.train, recipe.path), "--save-dir", str(save_dir), *world_flags(environment, cpu)]
    if recipe.tokens_per_update is not None:
        if given.max_tokens is None:
            raise ValueError(f"{recipe.path} has tokens-per-update and no max-tokens: give --max-tokens")
        frequency = given.update_freq or str(update_frequency(recipe.tokens_per_update, processes, given.max_tokens))
        if given.update_freq is None:
            words += ["--update-freq", frequency]
        if frequency.isdigit():
            tokens = processes * given.max_tokens * int(frequency)
            print(
                f"an update: {processes} processes x {given.max_tokens} tokens x {frequency} batches = at most "
                f"{tokens} tokens; the paper: {recipe.tokens_per_update}",
                file=sys.stderr,
            )
    return words + rest


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="train.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("config", type=Path, help="configs/<dataset>/<row>.yaml")
    parser.add_argument("data", type=Path, help="a folder of fairseq-preprocess")
    parser.add_argument("--save-dir", type=Path, help="by default checkpoints/<dataset>/<row>")
    args, rest = parser.parse_known_args()
    if not args.data.is_dir():
        parser.error(f"DATA {args.data}: there is no such folder")
    try:
        recipe = load(args.config)
        save_dir = args.save_dir or Path("checkpoints", recipe.dataset, recipe.row)
        words = command(recipe, args.data, save_dir, rest, os.environ)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("+", quoted(words), file=sys.stderr, flush=True)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
