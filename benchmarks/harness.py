"""Options, timed calls that take turns, memory, verdicts and files of all benchmarks."""

import argparse
import gc
import itertools
import json
import math
import operator
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.common.files import writing
from benchmarks.targets import BASE

Key = TypeVar("Key")
Value = TypeVar("Value")
GIB, MIB = 2**30, 2**20
#: How much systems may differ on a timed shape, relative to the largest value: float16 and bfloat16 round weights.
AGREEMENT = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def options_parser(description: str | None, repeats: int, dtype: bool = True) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have; ``dtype``: whether to add ``--dtype``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if dtype:
        parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--repeats", type=positive, default=repeats, help="timed calls of each system, after a warm-up")
    add_files(parser, plot="a picture of them")
    return parser


def add_files(parser: argparse.ArgumentParser, **more: str) -> None:
    """``--out`` for the numbers, and an option for each other file, with its help."""
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write all numbers to this file")
    suffixes = {"plot": "svg", "markdown": "md"}
    for name, text in more.items():
        parser.add_argument(f"--{name}", type=Path, metavar=f"FILE.{suffixes[name]}", help=f"write {text} to this file")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """The options with the sizes of a translation model."""
    for name, default in BASE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=positive, default=default)


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options, after applying them to PyTorch, and a copy to store with the numbers."""
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    check_files(parser, args)
    if "embed_dim" in args and args.embed_dim % args.heads:
        parser.error("the heads must divide the dimension")
    options = {name: value for name, value in vars(args).items() if name not in ("out", "plot")}
    if "dtype" in args:
        args.dtype = getattr(torch, args.dtype)
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = False  # so that float32 means the same for all systems
    torch.manual_seed(1)
    return args, options


def check_files(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program before anything is measured if a file of ``add_files`` cannot be written."""
    for name in {"out", "markdown", "plot"} & vars(args).keys():
        path: Path | None = getattr(args, name)
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"--{name} {path}: there is no folder {path.parent}")
        if name == "plot" and path is not None and path.suffix != ".svg":
            parser.error(f"--plot {path}: a picture is an .svg")


def read_result(text: str) -> dict[str, Any]:
    """The result in a file on the command line, which a benchmark has written with ``--out``."""
    try:
        result = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise argparse.ArgumentTypeError(f"{text}: {reason}") from error
    if not isinstance(result, dict):
        raise argparse.ArgumentTypeError(f"{text}: it is of no benchmark")
    return result


def rounds(
    functions: Mapping[Key, Callable[[], Value]], count: int, seconds: float = math.inf, seed: int = 1
) -> dict[Key, list[Value]]:
    """Results of ``count`` calls of each function, in rounds over all of them, in random order because of the caches.

    A function is not called again once its calls have taken ``seconds``; each is called at least once.
    """
    order, generator = list(functions), random.Random(seed)
    results: dict[Key, list[Value]] = {key: [] for key in functions}
    spent = dict.fromkeys(functions, 0.0)
    for _ in range(count):
        generator.shuffle(order)
        for key in order:
            if not results[key] or spent[key] < seconds:
                start = time.perf_counter()
                results[key].append(functions[key]())
                spent[key] += time.perf_counter() - start
    return results


def now(device: str) -> float:
    """Seconds, after what the device has still to do."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(function: Callable[[], Value], device: str) -> tuple[float, Value]:
    """Seconds of a call by the wall clock, and its result."""
    start = now(device)
    result = function()
    return now(device) - start, result


def seconds(function: Callable[[], object], device: str) -> float:
    """Seconds of a call by the wall clock, without freeing its result."""
    return timed(function, device)[0]


def peak_extra_memory(function: Callable[[], object], device: str) -> int:
    """The most bytes that are allocated at once during a call, beyond what was before it."""
    gc.collect()  # garbage that is freed meanwhile would count
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    # The allocator reports every block to the profiler, even inside custom operators, which a TorchDispatchMode misses.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages
    gc.disable()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    gc.enable()
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate((event.nbytes() for event in events), initial=0))


def memory_limit(device: str) -> int:
    """Bytes that a system may take: three quarters of what is free."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0] * 3 // 4
    available = re.search(r"^MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    return int(available.group(1)) * 1024 * 3 // 4 if available else 4 * GIB


def disagreement(expected: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor; NaN where there is one."""
    errors = [(a - b).abs().max() / a.abs().max() for a, b in zip(expected, outputs, strict=True)]
    return torch.stack(errors).max().item()


def target(text: str, value: float | None, passed: bool | None, **facts: object) -> dict[str, Any]:
    """A target with the value that was measured; ``passed`` is None if the run cannot tell."""
    return {"target": text, "value": value, "passed": passed, **facts}


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


def write_tables(text: str, args: argparse.Namespace) -> None:
    """Print tables, and write them to ``--markdown``."""
    print(text)
    if args.markdown:
        args.markdown.write_text(text, encoding="utf-8")


def finish(
    result: dict[str, Any],
    args: argparse.Namespace,
    plot: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Print the verdicts on ``result["targets"]`` and write the files that the options name."""
    for judged in result["targets"]:
        print(verdict(judged))
    write(args.out, result)
    if plot is not None and args.plot is not None:
        plot(result, args.plot)
