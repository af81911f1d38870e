"""Train a model, on one device or many: a row of a paper's table at a scale, or any model of fairseq-train.

    amlp-fairseq train DATA --row ibdecoder --scale multi30k [--save-dir DIR] [options of fairseq-train]
    amlp-fairseq train DATA --arch transformer … [options of fairseq-train]
    torchrun --nproc_per_node 8 --no-python amlp-fairseq train DATA --row ibdecoder …

DATA is a folder of ``amlp-fairseq prepare``, or of fairseq-preprocess with --corpus. Options of fairseq-train win over
the configuration's: ``--fp16``, ``--bf16``, ``--max-tokens`` to fit the memory, … ``--update-freq`` is set so that an
update sees as many tokens as in the paper. A rate that falls to zero does so over as many updates as ``--max-update``
gives. ``--eval-bleu`` validates also at scales that do not. ``--source-lang TARGET --target-lang SOURCE`` trains the
other direction, which ``evaluate`` then knows. A run that was stopped continues. Without --row it is fairseq-train with
--user-dir set.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from fairseq import checkpoint_utils

from amlp_fairseq.common.arguments import (
    PLUGIN,
    as_fairseq_has_it,
    command_parser,
    flags_of,
    folder,
    parse_with_fairseqs,
    say_next,
    split_options,
    without,
)
from amlp_fairseq.common.files import hold
from amlp_fairseq.common.training_folder import BUSY, LAST, RECIPE
from amlp_fairseq.compat.distributed import started_by_torchrun
from amlp_fairseq.compat.flags import fairseqs_flags, known_flags
from amlp_fairseq.ops.bernoulli import faster_bernoulli
from amlp_fairseq.training import quality
from amlp_fairseq.training.config import Recipe, flags, quoted, read, save
from amlp_fairseq.training.data_folder import (
    chosen_recipe,
    data_folder,
    is_distilled,
    recipe_arguments,
    stored_text,
    text_settings,
    with_data_folder,
)
from amlp_fairseq.training.engine import saved_cfg
from amlp_fairseq.training.following import say_after_checkpoint
from amlp_fairseq.training.results import data_sha256
from amlp_fairseq.training.validation_search import by_the_plugins_search


def world_flags(environment: Mapping[str, str], cpu: bool) -> list[str]:
    """Options that tell fairseq about the processes of torchrun, which it finds by itself only on GPUs."""
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
    """The arguments of ``fairseq-train``; prints to standard error how many tokens an update will have.

    Raises:
        ValueError: if the paper's number of tokens cannot be set because there is no ``--max-tokens``, or a rate that
            falls to zero has no last update.
    """
    numbers = {"--max-tokens": int, "--max-update": int, "--distributed-world-size": int}
    given, _ = split_options(rest, {**numbers, "--update-freq": str}, ["--cpu", "--eval-bleu"])
    max_tokens = recipe.train.get("max-tokens") if given.max_tokens is None else given.max_tokens
    cpu = given.cpu or not torch.cuda.is_available()
    processes = started_by_torchrun(environment)
    if processes == 1:  # without torchrun, fairseq starts a process for each GPU itself
        processes = given.distributed_world_size or (1 if cpu else torch.cuda.device_count())
    train = {**recipe.train}
    if given.eval_bleu:
        train.pop("disable-validation", None)
    if given.max_update is not None and "total-num-update" in train:  # the rate falls to zero with the last update
        if given.max_update < 1:
            raise ValueError(f"--max-update {given.max_update}: the learning rate is to be zero after the last update")
        train["total-num-update"] = given.max_update
    words = [str(data), "--user-dir", str(PLUGIN), *flags(recipe.task, recipe.row), *flags(train, recipe.row)]
    words += ["--save-dir", str(save_dir), *world_flags(environment, cpu)]
    if recipe.tokens_per_update is not None:
        if max_tokens is None:
            raise ValueError(f"row {recipe.row} has tokens-per-update and no max-tokens: give --max-tokens")
        frequency = given.update_freq or str(update_frequency(recipe.tokens_per_update, processes, max_tokens))
        if given.update_freq is None:
            words += ["--update-freq", frequency]
        if frequency.isdigit():
            tokens = processes * max_tokens * int(frequency)
            print(
                f"an update: {processes} processes x {max_tokens} tokens x {frequency} batches = at most "
                f"{tokens} tokens; the paper: {recipe.tokens_per_update}",
                file=sys.stderr,
            )
    return words + rest


def has_ended(words: list[str], save_dir: Path) -> bool:
    """True if a training with these arguments has had its updates."""
    updates = split_options(words, {"--max-update": int})[0].max_update
    checkpoint = save_dir / LAST
    if not updates or not checkpoint.is_file():
        return False
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    except ValueError:  # damaged: the training says what can be done
        return False
    return int(state["optimizer_history"][-1]["num_updates"]) >= updates


def chosen_languages(rest: list[str]) -> dict[str, str]:
    """``source-lang`` and ``target-lang`` where the user gives them."""
    given, _ = split_options(rest, ["--source-lang -s", "--target-lang -t"])
    return {name.replace("_", "-"): language for name, language in vars(given).items() if language}


def changes(rest: list[str]) -> str:
    """The user's own options, except the seed and the device."""
    return quoted(without(rest, ["--seed"], ["--cpu"]))


def accepted(args: argparse.Namespace) -> set[str]:
    """The flags that the training of a row takes."""
    recipe = chosen_recipe(args.row, args.scale, text_settings(args.data, args.corpus))
    return fairseqs_flags("training", *flags(recipe.task, recipe.row), *flags(recipe.train, recipe.row))


def main() -> None:
    if "--row" not in flags_of(sys.argv[1:]) and not {"-h", "--help"} & {*sys.argv[1:]}:
        words = as_fairseq_has_it(with_data_folder(sys.argv[1:]))
        run(["--user-dir", str(PLUGIN), *words])
        name_next(Path(split_options(words, ["--save-dir"])[0].save_dir or "checkpoints", LAST))
        return
    parser = command_parser("train", __doc__)
    parser.add_argument("data", metavar="DATA", type=data_folder, help="a folder of amlp-fairseq prepare")
    recipe_arguments(parser)
    parser.add_argument("--save-dir", type=folder, help="default: checkpoints/CORPUS[-distilled]/SCALE/ROW")
    parser.add_argument("--print", action="store_true", help="only show the configuration and the command")
    args, rest = parse_with_fairseqs(parser, known_flags, accepted=accepted, forward_device=True)
    if not args.data.is_dir():
        parser.error(f"DATA {args.data}: there is no such folder")
    text = text_settings(args.data, args.corpus)
    recipe = chosen_recipe(args.row, args.scale, text)
    distilled = is_distilled(args.data)
    save_dir = args.save_dir or Path("checkpoints", text["name"] + "-distilled" * distilled, recipe.scale, recipe.row)
    words = command(recipe, args.data, save_dir, rest, os.environ)
    recipe = replace(recipe, task=recipe.task | chosen_languages(rest), changes=changes(rest))
    if args.print:
        content = {name: value for name, value in vars(recipe).items() if name != "published"}
        print(yaml.safe_dump(content, sort_keys=False, allow_unicode=True) + "\n" + quoted(["fairseq-train", *words]))
        return
    recipe = replace(recipe, training_set=data_sha256(args.data, "train"), distilled=distilled)
    begun = read(save_dir / RECIPE) if (save_dir / RECIPE).is_file() and (save_dir / LAST).is_file() else None
    if begun and (begun.row, begun.scale) != (recipe.row, recipe.scale):
        parser.error(
            f"--save-dir {save_dir} has a training of --row {begun.row} --scale {begun.scale}: give another folder"
        )
    if begun and begun.training_set not in ("", recipe.training_set):
        parser.error(
            f"--save-dir {save_dir} has a training on another training set than DATA {args.data}'s: give another folder"
        )
    print("+", quoted(["fairseq-train", *words]), file=sys.stderr, flush=True)
    if os.environ.get("RANK", "0") == "0":
        save_dir.mkdir(parents=True, exist_ok=True)
        hold(save_dir / ".recipe.lock", f"--save-dir {save_dir}: {BUSY}")
        if begun is None or not has_ended(words, save_dir):
            save(recipe, save_dir / RECIPE)
        elif begun.changes != recipe.changes:
            print(
                f"train: {save_dir} has ended with other options, which stay: {begun.changes or 'none'}",
                file=sys.stderr,
            )
    run(words)
    if os.environ.get("RANK", "0") == "0":
        if stored_text(args.data) is None:  # evaluate needs it
            name_next(save_dir / LAST)
        else:
            say_next("evaluate", save_dir, args.data)


def name_next(checkpoint: Path) -> None:
    """Name the command that makes use of the checkpoint of a training that ``evaluate`` does not know."""
    if os.environ.get("RANK", "0") == "0" and checkpoint.is_file():
        say_after_checkpoint(checkpoint, saved_cfg(checkpoint))


def run(words: list[str]) -> None:
    """Run fairseq-train in this process, where dropout on a CPU samples faster, and validation decodes faster."""
    from fairseq_cli import train

    sys.argv[1:] = words
    with faster_bernoulli(), quality.shown(), by_the_plugins_search():
        train.cli_main()


if __name__ == "__main__":
    main()
