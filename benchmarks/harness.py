"""What the benchmarks share: options, timed calls that take turns, verdicts and files."""

import argparse
import json
import math
import operator
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.common.files import writing
from benchmarks.targets import BASE

Key = TypeVar("Key")
Value = TypeVar("Value")


def options_parser(description: str | None, repeats: int, dtype: bool = True) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have; ``dtype``: whether to add ``--dtype``."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if dtype:
        result.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    result.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="CPU threads")
    result.add_argument("--repeats", type=positive, default=repeats, help="timed calls of each system, after a warm-up")
    result.add_argument("--out", type=Path, metavar="FILE.json", help="write all numbers to this file")
    result.add_argument("--plot", type=Path, metavar="FILE", help="write a plot to this file, png or svg")
    return result


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """The options with the sizes of a translation model."""
    for name, default in BASE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=positive, default=default)


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options, after applying them to PyTorch, and a copy to store with the numbers."""
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    check_folders(parser, args, "out", "plot")
    if "embed_dim" in args and args.embed_dim % args.heads:
        parser.error("the heads must divide the dimension")
    options = {name: value for name, value in vars(args).items() if name not in ("out", "plot")}
    if "dtype" in args:
        args.dtype = getattr(torch, args.dtype)
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = False  # so that float32 means the same for all systems
    torch.manual_seed(1)
    return args, options


def check_folders(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    """Stop before anything is measured if one of the options names a file in a folder that does not exist."""
    for name in names:
        path: Path | None = getattr(args, name)
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}")


def decoding_result(text: str) -> dict[str, Any]:
    """What a file on the command line holds that benchmarks/decoding.py has written."""
    try:
        result: dict[str, Any] = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise argparse.ArgumentTypeError(f"{text}: {reason}") from error
    if "decoding" not in result:
        raise argparse.ArgumentTypeError(f"{text}: it is not of benchmarks/decoding.py")
    return result


def rounds(
    functions: Mapping[Key, Callable[[], Value]], count: int, seconds: float = math.inf, seed: int = 1
) -> dict[Key, list[Value]]:
    """Results of ``count`` calls of each function, in rounds over all of them, in random order because of the caches.

    A function is not called again once its calls have taken ``seconds``; each is called at least once.
    """
    order, generator = list(functions), random.Random(seed)
    found: dict[Key, list[Value]] = {key: [] for key in functions}
    spent = dict.fromkeys(functions, 0.0)
    for _ in range(count):
        generator.shuffle(order)
        for key in order:
            if not found[key] or spent[key] < seconds:
                start = time.perf_counter()
                found[key].append(functions[key]())
                spent[key] += time.perf_counter() - start
    return found


def now(device: str) -> float:
    """Seconds, after what the device has still to do."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def verdict(target: Mapping[str, Any]) -> str:
    """A line on one of ``result["targets"]``."""
    word = {True: "pass", False: "FAIL", None: "not measured"}[target["passed"]]
    word += ", disturbed" * bool(target.get("disturbed"))
    if not target["value"]:
        return f"{word}: {target['target']}"
    spread = ", quartiles {:.4g} and {:.4g}".format(*target["quartiles"]) if "quartiles" in target else ""
    return f"{word}: {target['target']} ({target['value']:.4g}{spread})"


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write the numbers to a file, if one is wanted; it has its name only when it is whole."""
    if path is not None:
        text = json.dumps(result, indent=1, default=operator.methodcaller("item"))  # numpy's scalars
        with writing(path) as (file,):
            file.write(text + "\n")


def finish(result: dict[str, Any], args: argparse.Namespace, plot: Callable[[dict[str, Any], Path], None]) -> None:
    """Print the verdicts on ``result["targets"]`` and write the files that the options name."""
    for target in result["targets"]:
        print(verdict(target))
    write(args.out, result)
    if args.plot is not None:
        plot(result, args.plot)
