"""Average the weights of several checkpoints of one training run.

    amlp-fairseq average --inputs checkpoints/checkpoint{16,17,18,19,20}.pt --output checkpoints/average.pt
    amlp-fairseq average --inputs checkpoints --last-epochs 5 --output checkpoints/average.pt
    amlp-fairseq average --inputs checkpoints --best 5 --output checkpoints/average.pt

fairseq has a script for this in its repository but not in its wheel.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import checkpoint_paths

from amlp_fairseq.common.arguments import command_parser
from amlp_fairseq.common.files import whole
from amlp_fairseq.common.training_folder import LAST
from amlp_fairseq.compat.checkpoint_utils import refusals_name


def load(path: Path) -> dict[str, Any]:
    """A checkpoint of fairseq on the CPU.

    Raises:
        ValueError: naming the file, if it is damaged or something else.
    """
    with refusals_name(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError(f"{path} is not a checkpoint of fairseq: it has no 'model'")
    return state


def average_checkpoints(paths: list[Path]) -> dict[str, Any]:
    """The last checkpoint with the mean of all checkpoints' weights, without optimizer state.

    Means are taken in float64 and stored in the weights' own type; integer buffers come from the last checkpoint.

    Args:
        paths: checkpoint files, at least one.

    Raises:
        ValueError: as ``load``, and if two do not have the same parameters, naming the parameter.
    """
    sums: dict[str, torch.Tensor] = {}
    state: dict[str, Any] = {}
    for path in paths:
        state = load(path)
        weights = state["model"]
        if sums and weights.keys() != sums.keys():
            names = ", ".join(sorted(weights.keys() ^ sums.keys()))
            raise ValueError(f"{path} and {paths[0]} do not have the same parameters: {names}")
        for name, weight in weights.items():
            if name in sums and sums[name].shape != weight.shape:
                raise ValueError(
                    f"{name} has shape {tuple(weight.shape)} in {path} and {tuple(sums[name].shape)} in {paths[0]}"
                )
            sums[name] = sums[name] + weight.double() if name in sums else weight.double()
    for name, weight in state["model"].items():
        if weight.is_floating_point():
            state["model"][name] = (sums[name] / len(paths)).to(weight.dtype)
    state.pop("last_optimizer_state", None)
    return state


def newest(folder: Path, pattern: str) -> list[Path]:
    """The checkpoints whose names match a pattern with one group, a number; the largest last."""
    return [Path(path) for path in checkpoint_paths(str(folder), pattern)][::-1]


def best(folder: Path) -> list[Path]:
    """Checkpoints that ``--keep-best-checkpoints`` kept, the best last: the highest if the training has
    ``--maximize-best-checkpoint-metric``, else the lowest.

    Raises:
        ValueError: if there are checkpoints by two metrics, or as ``load``.
    """
    metrics = {match[1] for path in folder.iterdir() if (match := re.match(r"checkpoint\.best_(\w+)_", path.name))}
    if len(metrics) > 1:
        raise ValueError(f"{folder} has best checkpoints by {' and by '.join(sorted(metrics))}")
    paths = newest(folder, rf"checkpoint\.best_{''.join(metrics)}_(\d+\.?\d*)\.pt")
    highest = bool(paths) and load(paths[-1])["cfg"]["checkpoint"]["maximize_best_checkpoint_metric"]
    return paths if highest else paths[::-1]


#: Checkpoints of a folder that an option means, and the option of fairseq-train that keeps them.
CHOICES = {
    "last_epochs": (lambda folder: newest(folder, r"checkpoint(\d+)\.pt"), "--keep-last-epochs"),
    "last_updates": (lambda folder: newest(folder, r"checkpoint_\d+_(\d+)\.pt"), "--keep-interval-updates"),
    "best": (best, "--keep-best-checkpoints"),
}


def chosen(folder: Path, kind: str, count: int) -> list[Path]:
    """The last ``count`` checkpoints of a kind of ``CHOICES``, all if there are fewer; of a training that was shorter
    than an interval the last one, which is all that it leaves."""
    return (CHOICES[kind.replace("-", "_")][0](folder) or [folder / LAST])[-count:]


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint; the file has its name when it is complete.

    Raises:
        OSError: naming the file, where torch.save says "unexpected pos" of a full disk.
    """
    with whole(path) as (part,):
        try:
            with part.open("wb") as file:
                torch.save(state, file)
        except RuntimeError as error:
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def main() -> None:
    parser = command_parser("average", __doc__)
    parser.add_argument("--inputs", nargs="+", type=Path, required=True, help="checkpoint files, or one folder of them")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    choices = parser.add_mutually_exclusive_group()
    choices.add_argument("--last-epochs", type=int, metavar="N", help="the folder's checkpoints of the last N epochs")
    choices.add_argument("--last-updates", type=int, metavar="N", help="its last N saved during epochs")
    choices.add_argument("--best", type=int, metavar="N", help="its best N by the validation metric")
    args = parser.parse_args()

    paths = args.inputs
    if not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: the folder does not exist")
    for name, (find, keep) in CHOICES.items():
        count, flag = getattr(args, name), f"--{name.replace('_', '-')}"
        if count is None:
            continue
        if len(paths) != 1 or not paths[0].is_dir():
            parser.error(f"{flag} needs --inputs to be one folder that exists, not {' '.join(map(str, paths))}")
        paths = find(args.inputs[0])
        if not 1 <= count <= len(paths):
            parser.error(
                f"{flag} {count}: {args.inputs[0]} has {len(paths)} such checkpoint(s); "
                f"fairseq-train keeps them with {keep}"
            )
        paths = paths[-count:]
    for path in paths:
        if not path.is_file():
            parser.error(
                f"--inputs {path}: there is no such file (for a folder, say how many checkpoints: --last-epochs, "
                "--last-updates or --best)"
            )
        if path.resolve() == args.output.resolve():
            parser.error(f"--output {args.output} is one of --inputs, and would lose its optimizer state")
    state = average_checkpoints(paths)
    save(state, args.output)
    from amlp_fairseq.training.following import say_after_checkpoint  # which takes seconds

    if (state.get("cfg") or {}).get("task"):  # not of fairseq before 0.10
        say_after_checkpoint(args.output, state["cfg"])


if __name__ == "__main__":
    main()
