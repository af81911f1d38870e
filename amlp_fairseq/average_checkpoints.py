"""Average the weights of several checkpoints of one training run.

    amlp-average-checkpoints --inputs checkpoints/checkpoint{16,17,18,19,20}.pt --output checkpoints/average.pt
    amlp-average-checkpoints --inputs checkpoints --last-epochs 5 --output checkpoints/average.pt

fairseq has a script for this in its repository but not in its wheel.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import checkpoint_paths

import amlp_fairseq  # noqa: F401  (lets fairseq's checkpoints load)
from amlp_fairseq.safe_checkpoints import refusals_name


def average_checkpoints(paths: list[Path]) -> dict[str, Any]:
    """The last checkpoint with the mean of all checkpoints' weights, without optimizer state.

    Means are taken in float64 and stored in the weights' own type; integer buffers come from the last checkpoint.

    Args:
        paths: checkpoint files, at least one.

    Raises:
        ValueError: if two checkpoints do not have the same parameters; names the file and the parameter.
    """
    sums: dict[str, torch.Tensor] = {}
    state: dict[str, Any] = {}
    for path in paths:
        with refusals_name(path):
            state = torch.load(path, map_location="cpu", weights_only=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", nargs="+", type=Path, required=True, help="checkpoint files, or one folder of them")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    parser.add_argument("--last-epochs", type=int, metavar="N", help="the last N epochs' checkpoints of the folder")
    args = parser.parse_args()

    paths = args.inputs
    if not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: the folder does not exist")
    if args.last_epochs is not None:
        if len(paths) != 1 or not paths[0].is_dir():
            parser.error(f"--last-epochs needs --inputs to be one folder that exists, not {' '.join(map(str, paths))}")
        paths = [Path(path) for path in checkpoint_paths(str(paths[0]))]
        if not 1 <= args.last_epochs <= len(paths):
            parser.error(
                f"--last-epochs {args.last_epochs}: {args.inputs[0]} has {len(paths)} epoch checkpoint(s); "
                "fairseq-train keeps them with --keep-last-epochs"
            )
        paths = paths[: args.last_epochs][::-1]
    for path in paths:
        if not path.is_file():
            parser.error(f"--inputs {path}: there is no such file (for a folder, say how many --last-epochs)")
    torch.save(average_checkpoints(paths), args.output)


if __name__ == "__main__":
    main()
