"""Train Informer with different cross-attentions to forecast a time series, and print MSE and MAE beside Table 5 of the
AMLP paper.

    python examples/time_series/forecast.py [FILE.csv …] [--results FILE.jsonl]

Without a file the series is a synthetic one, at a size that takes minutes on one thread. For the paper's table, with
ETTh1.csv, ETTh2.csv and ETTm1.csv: --scale paper. Any option of the model and of its attentions may follow. A training
that the file of results has already is not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ett import FEATURES, Series, Windows, parts, read_csv
from informer import Informer, InformerOptions
from seasons import seasons
from tables import PUBLISHED, TABLE, comparison, details
from torch import Tensor, nn

from amlp_fairseq.attention.registry import ATTENTIONS
from amlp_fairseq.common.arguments import Parser, positive
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.user_errors import one_line_errors
from amlp_fairseq.compat.internals import gen_parser_from_dataclass
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import run_missing

#: Windows that are scored together; no result depends on it.
SCORED = 256
#: Options that say which trainings there are, not how each of them trains.
CHOICES = ("files", "scale", "results", "device", "seed", "features", "horizon", "decoder_cross_attention_type")


@dataclass(frozen=True)
class Job:
    """One training."""

    series: Series
    features: str
    horizon: int
    attention: str
    seed: int
    args: argparse.Namespace

    def windows(self) -> dict[str, Windows]:
        return parts(self.series, self.features, self.args.input_length, self.horizon)

    def model(self) -> Informer:
        options = argparse.Namespace(**{**vars(self.args), "decoder_cross_attention_type": self.attention})
        variables = len(self.series.columns) if self.features == "multivariate" else 1
        torch.manual_seed(self.seed)
        return Informer(options, variables, self.args.input_length, self.args.start_length, self.horizon)

    def identity(self) -> dict[str, Any]:
        """The fields that identify its result."""
        return {
            "data": self.series.name,
            "data_sha256": self.series.sha256,
            "features": self.features,
            "horizon": self.horizon,
            "cross_attention": self.attention,
            "seed": self.seed,
            "options": self.args.options,
        }


def train(job: Job) -> dict[str, Any]:
    """Train a model and score its last state: the other fields of its result."""
    args, start = job.args, time.perf_counter()
    windows, model = job.windows(), job.model().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.999), weight_decay=0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    shuffle = torch.Generator().manual_seed(job.seed)
    for epoch in range(1, args.epochs + 1):
        model.train()
        losses = []
        for starts in torch.randperm(len(windows["train"]), generator=shuffle).split(args.batch_size):
            inputs, stamps, target = windows["train"].batch(starts, args.device)
            loss = F.mse_loss(model(inputs, stamps), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        schedule.step()
        valid_mse, valid_mae = score(model, windows["valid"], args.device)
        print(
            f"{job.series.name}, {job.features}, horizon {job.horizon}, {job.attention}, seed {job.seed}: "
            f"epoch {epoch} of {args.epochs}, training MSE {float(torch.stack(losses).mean()):.3f}, "
            f"validation {valid_mse:.3f}, {time.perf_counter() - start:.0f} s",
            file=sys.stderr,
        )
    mse, mae = score(model, windows["test"], args.device)
    repeated = score(RepeatedDay(job.series.rows_per_day, job.horizon), windows["test"], args.device)
    return {
        "scale": args.scale,
        "mse": mse,
        "mae": mae,
        "valid_mse": valid_mse,
        "valid_mae": valid_mae,
        "repeated_day_mse": repeated[0],
        "repeated_day_mae": repeated[1],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **environment(torch.device(args.device).type),
    }


@torch.no_grad()
def score(model: nn.Module, windows: Windows, device: str) -> tuple[float, float]:
    """Mean squared and mean absolute error of the standardised values, over all windows, rows and variables."""
    model.eval()
    squared, absolute, count = 0.0, 0.0, 0
    for starts in torch.arange(len(windows)).split(SCORED):
        inputs, stamps, target = windows.batch(starts, device)
        error = (model(inputs, stamps) - target).double()
        squared, absolute = squared + float(error.square().sum()), absolute + float(error.abs().sum())
        count += error.numel()
    return squared / count, absolute / count


class RepeatedDay(nn.Module):
    """A forecast for comparison: the last day of the input (or all of a shorter input), again and again."""

    def __init__(self, rows_per_day: int, horizon: int) -> None:
        super().__init__()
        self.rows_per_day, self.horizon = rows_per_day, horizon

    def forward(self, inputs: Tensor, stamps: Tensor) -> Tensor:
        day = inputs[:, -self.rows_per_day :]
        return day[:, torch.arange(self.horizon) % day.size(1)]


def arguments() -> argparse.Namespace:
    """The command line, with the scale's defaults. ``options`` of the result: how the models are and how they train,
    without what has the default of every scale.

    Raises:
        ValueError: if the learning rate or the device cannot be used.
    """
    parser = Parser(
        prog="forecast.py",
        usage="forecast.py [FILE.csv …] [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.csv", help="date, variables, the target last")
    parser.add_argument("--scale", choices=list(TABLE["scales"]), default="reduced", help="defaults of other options")
    parser.add_argument(
        "--results", type=Path, metavar="FILE.jsonl", help="append a line for each training to this file"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")
    parser.add_argument("--seed", type=positive, nargs="+", default=[1], help="a training for each (default: 1)")
    parser.add_argument("--features", choices=FEATURES, nargs="+", help="all variables, or the target alone; or both")
    parser.add_argument("--horizon", type=positive, nargs="+", metavar="H", help="rows to predict; a training for each")
    parser.add_argument(
        "--decoder-cross-attention-type",
        choices=list(ATTENTIONS),
        nargs="+",
        default=PUBLISHED,
        metavar="NAME",
        help=f"attention to the input; a training for each (default: {' '.join(PUBLISHED)})",
    )
    parser.add_argument("--input-length", type=positive, metavar="L", help="rows that the encoder reads")
    parser.add_argument(
        "--start-length", type=positive, metavar="N", help="the last of them, which the decoder reads, too"
    )
    parser.add_argument("--epochs", type=positive, help="the learning rate is halved after each")
    parser.add_argument("--batch-size", type=positive, help="windows of an update")
    parser.add_argument("--lr", type=float, help="learning rate of AdamW")
    gen_parser_from_dataclass(parser, InformerOptions())
    defaults = vars(parser.parse_args([]))
    parser.set_defaults(**TABLE["scales"][parser.parse_known_args()[0].scale])
    args = parser.parse_args()
    args.options = {
        name: value for name, value in vars(args).items() if name not in CHOICES and value != defaults[name]
    }
    if not args.lr > 0:
        raise ValueError(f"--lr {args.lr} must be above 0")
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)} must be from 0 to below 1")
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {args.device} cannot be used: {str(error).splitlines()[0]}") from None
    return args


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The trainings that a command line asks for.

    Raises:
        ValueError: if it names no horizon for a series that is not like those of ETT.
    """
    for series in [read_csv(path) for path in args.files] or [seasons()]:
        horizons = args.horizon or TABLE["horizons"].get(series.minutes)
        if horizons is None:
            raise ValueError(f"{series.name} has a row every {series.minutes} minutes: --horizon is needed")
        for features, horizon in itertools.product(args.features, horizons):
            for attention, seed in itertools.product(args.decoder_cross_attention_type, args.seed):
                yield Job(series, features, horizon, attention, seed, args)


def main() -> None:
    with one_line_errors("forecast.py"), clear_endings("forecast.py"):
        args = arguments()
        wanted = list(jobs(args))
        for job in wanted:  # finds mistakes before the first training
            job.windows()
        for job in {job.attention: job for job in wanted}.values():
            job.model()
        lines = run_missing(args.results, ((job.identity(), partial(train, job)) for job in wanted))
        print(f"{details(lines)}\n\n{comparison(lines)}")


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq makes it DEBUG
    main()
