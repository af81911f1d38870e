"""Train SR3 with different self-attentions to sharpen images, and print PSNR and SSIM beside Table 4 of the AMLP paper.

    python examples/super_resolution/super_resolution.py [--images DIR --test-images DIR] [--results FILE.jsonl]

Without images it draws some, at a size that takes minutes on one thread. For the paper's table, with FFHQ and
CelebA-HQ: --scale paper. Any option of the attentions may follow; they are those of an encoder. A training that the
file of results has already is not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from shapes import Drawn
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler

from amlp_fairseq.attention.registry import ATTENTIONS, attention_options
from amlp_fairseq.common.arguments import Parser, positive
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.user_errors import one_line_errors
from amlp_fairseq.compat.internals import gen_parser_from_dataclass
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import run_missing

try:
    from images import Folder, enlarged
    from scores import PUBLISHED, TABLE, WINDOW, psnr, ssim, table
    from sr3 import PREDICTIONS, SR3, STEPS
except ModuleNotFoundError as error:
    sys.exit(f'super_resolution.py: {error}: pip install "amlp-fairseq[images]"')

#: Synthetic images for training and test, and the seeds that they are drawn with.
DRAWN = {"train": (2048, 1), "test": (128, 2)}
#: Images that are made at once.
SAMPLED = 32
#: States that are averaged (Table 1).
AVERAGED = 5
#: Options that say which trainings there are, not how each of them trains.
CHOICES = ("images", "test_images", "scale", "results", "device", "seed", "encoder_self_attention_type")

#: The options of the attentions but those of a decoder.
AttentionOptions = dataclasses.make_dataclass(
    "AttentionOptions",
    [
        (option.name, option.type, option)
        for encoder in (False, True)
        for option in dataclasses.fields(attention_options(encoder))
        if not option.name.startswith("decoder_")
    ],
    bases=(FairseqDataclass,),
)

Images = Folder | Drawn


@dataclass(frozen=True)
class Job:
    """One training."""

    images: dict[str, Images]
    attention: str
    seed: int
    args: argparse.Namespace

    def identity(self) -> dict[str, Any]:
        """The fields that identify its result."""
        return {
            "data": {part: f"{images.name} {images.sha256}" for part, images in self.images.items()},
            "self_attention": self.attention,
            "seed": self.seed,
            "options": self.args.options,
        }


def build(args: argparse.Namespace, attention: str, seed: int) -> SR3:
    torch.manual_seed(seed)
    return SR3(argparse.Namespace(**{**vars(args), "encoder_self_attention_type": attention}))


def train(job: Job) -> dict[str, Any]:
    """Train a model and score the mean of its last states: the other fields of its result."""
    args, start = job.args, time.perf_counter()
    model = build(args, job.attention, job.seed).to(args.device)
    averaged = AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.999), weight_decay=0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, total_iters=args.steps)
    generator = torch.Generator().manual_seed(job.seed)
    shuffled = RandomSampler(job.images["train"], num_samples=args.steps * args.batch_size, generator=generator)
    losses = []
    for step, high in enumerate(DataLoader(job.images["train"], args.batch_size, sampler=shuffled), 1):
        low = enlarged(high, args.low_size)
        loss = model(as_input(high, args.device), as_input(low, args.device), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        left = args.steps - step
        if left % args.average_every == 0:
            if left < AVERAGED * args.average_every:
                averaged.update_parameters(model)
            print(
                f"{job.attention}, seed {job.seed}: step {step} of {args.steps}, "
                f"loss {float(torch.stack(losses).mean()):.4f}, {time.perf_counter() - start:.0f} s",
                file=sys.stderr,
            )
            losses = []
    model.load_state_dict(averaged.module.state_dict())
    return {
        "scale": args.scale,
        **score(model, job),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **environment(torch.device(args.device).type),
        "diffusers": version("diffusers"),
        "scikit-image": version("scikit-image"),
    }


def score(model: SR3, job: Job) -> dict[str, float]:
    """Mean PSNR and SSIM of what a model makes of the enlarged test images, and of these themselves (``bicubic_…``)."""
    args, generator = job.args, torch.Generator().manual_seed(job.seed)
    model.eval()
    scores: dict[str, list[float]] = {"psnr": [], "ssim": [], "bicubic_psnr": [], "bicubic_ssim": []}
    for high in DataLoader(job.images["test"], SAMPLED):
        low = enlarged(high, args.low_size)
        sampled = as_image(model.sample(as_input(low, args.device), args.sampling_steps, generator))
        for kind, images in (("", sampled), ("bicubic_", low)):
            scores[f"{kind}psnr"] += psnr(images, high)
            scores[f"{kind}ssim"] += ssim(images, high)
    return {name: fmean(values) for name, values in scores.items()}


def as_input(images: Tensor, device: str) -> Tensor:
    """Images of 8 bits in [-1, 1]."""
    return images.to(device).float() / 127.5 - 1


def as_image(x: Tensor) -> Tensor:
    """The inverse of ``as_input``."""
    return ((x + 1) * 127.5).round().clamp(0, 255).byte().cpu()


def arguments() -> argparse.Namespace:
    """The command line, with the scale's defaults. ``options`` of the result: how the models are and how they train,
    without what has the default of every scale.

    Raises:
        ValueError: if sizes do not fit each other, or the learning rate or the device cannot be used.
    """
    parser = Parser(
        prog="super_resolution.py",
        usage="super_resolution.py [--images DIR --test-images DIR] [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--images", type=Path, metavar="DIR", help="images to learn from (default: drawn ones)")
    parser.add_argument("--test-images", type=Path, metavar="DIR", help="images to score, needed with --images")
    parser.add_argument("--scale", choices=list(TABLE["scales"]), default="reduced", help="defaults of other options")
    parser.add_argument(
        "--results", type=Path, metavar="FILE.jsonl", help="append a line for each training to this file"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")
    parser.add_argument("--seed", type=positive, nargs="+", default=[1], help="a training for each (default: 1)")
    parser.add_argument(
        "--encoder-self-attention-type",
        choices=list(ATTENTIONS),
        nargs="+",
        default=PUBLISHED,
        metavar="NAME",
        help=f"attention among pixels; a training for each (default: {' '.join(PUBLISHED)})",
    )
    parser.add_argument("--low-size", type=positive, metavar="S", help="pixels along the side of what is sharpened")
    parser.add_argument("--high-size", type=positive, metavar="S", help="and of what comes out")
    parser.add_argument(
        "--channels", type=positive, nargs="+", metavar="C", help="of the U-Net's levels, each half as large"
    )
    parser.add_argument("--residual-blocks", type=positive, help="of each level on the way down; one more on that up")
    parser.add_argument(
        "--attention-sizes",
        type=positive,
        nargs="+",
        metavar="S",
        help="sides of the levels with attention after each residual block; in the middle there always is one",
    )
    parser.add_argument("--encoder-attention-heads", type=positive, default=1, help="heads of attention (default: 1)")
    parser.add_argument("--attention-dropout", type=float, help="of attention weights")
    parser.add_argument("--dropout", type=float, help="of residual blocks")
    parser.add_argument(
        "--prediction", choices=PREDICTIONS, help="target of the U-Net: the noise, or a mixture of it and the image"
    )
    parser.add_argument("--steps", type=positive, help="updates; the learning rate falls to 0 in a straight line")
    parser.add_argument(
        "--average-every", type=positive, help=f"updates between the last {AVERAGED} states, which are averaged"
    )
    parser.add_argument("--batch-size", type=positive, help="images of an update")
    parser.add_argument("--lr", type=float, help="learning rate of AdamW")
    parser.add_argument("--sampling-steps", type=positive, help=f"calls of the U-Net for an image, up to {STEPS}")
    gen_parser_from_dataclass(parser, AttentionOptions())
    defaults = vars(parser.parse_args([]))
    parser.set_defaults(**TABLE["scales"][parser.parse_known_args()[0].scale])
    args = parser.parse_args()
    args.options = {
        name: value for name, value in vars(args).items() if name not in CHOICES and value != defaults[name]
    }
    check(args)
    return args


def check(args: argparse.Namespace) -> None:
    """Raises:
    ValueError: naming an option that does not fit the others.
    """
    if (args.images is None) != (args.test_images is None):
        raise ValueError("--images and --test-images need each other")
    if not args.low_size < args.high_size:
        raise ValueError(f"--low-size {args.low_size} must be below --high-size {args.high_size}")
    if args.high_size < WINDOW:
        raise ValueError(f"--high-size {args.high_size} is below {WINDOW}, the windows of SSIM")
    sides = [args.high_size >> level for level in range(len(args.channels))]
    if args.high_size % (1 << len(sides) - 1):
        raise ValueError(
            f"--high-size {args.high_size} cannot be halved {len(sides) - 1} times for --channels {text(args.channels)}"
        )
    if not set(args.attention_sizes) <= set(sides):
        raise ValueError(f"--attention-sizes {text(args.attention_sizes)}: the U-Net has {text(sides)}")
    groups = args.channels[0] // 4
    if not groups or any(channels % groups for channels in args.channels):
        raise ValueError(f"--channels {text(args.channels)} must be multiples of a quarter of the first, 1 or more")
    if any(channels % args.encoder_attention_heads for channels in args.channels):
        raise ValueError(
            f"--encoder-attention-heads {args.encoder_attention_heads} must divide --channels {text(args.channels)}"
        )
    if not args.lr > 0:
        raise ValueError(f"--lr {args.lr} must be above 0")
    for name in ("attention_dropout", "dropout"):
        if not 0 <= getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)} must be from 0 to below 1")
    if args.sampling_steps > STEPS:
        raise ValueError(f"--sampling-steps {args.sampling_steps} is more than {STEPS}")
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {args.device} cannot be used: {str(error).splitlines()[0]}") from None


def images_for(args: argparse.Namespace) -> dict[str, Images]:
    """The images to learn from (``train``) and to score (``test``).

    Raises:
        ValueError: if a folder has no images, or one that cannot be used.
    """
    if args.images is None:
        return {part: Drawn(count, args.high_size, seed) for part, (count, seed) in DRAWN.items()}
    return {"train": Folder(args.images, args.high_size), "test": Folder(args.test_images, args.high_size)}


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The trainings that a command line asks for."""
    images = images_for(args)
    for attention, seed in itertools.product(args.encoder_self_attention_type, args.seed):
        yield Job(images, attention, seed, args)


def text(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def main() -> None:
    with one_line_errors("super_resolution.py"), clear_endings("super_resolution.py"):
        args = arguments()
        for name in args.encoder_self_attention_type:  # finds mistakes before the first training
            build(args, name, 1)
        print(table(run_missing(args.results, ((job.identity(), partial(train, job)) for job in jobs(args)))))


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq makes it DEBUG
    main()
