"""The engine's products of many rows beside oneDNN's, on one CPU thread.

    python -m benchmarks.products [--out FILE.json] [--markdown FILE.md]

The linear maps of WMT-base, with 64, 256 and 1,024 rows: so many words a batch of sentences has in the encoder, or in a
step with a beam. oneDNN is PyTorch's, with packed weights. The engine reads and writes float32: its time has the
rounding of its inputs to int8, by the row, or bfloat16; oneDNN's inputs are rounded before, in int8 with one scale for
all. Both take turns, in random order, after a warm-up; a time is the median over --repeats.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.engine.isa import library
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.training.environment import environment
from benchmarks.harness import add_files, check_files, rounds, seconds, write, write_tables
from benchmarks.tables import fields, table

SHAPES = [(512, 512), (512, 2048), (2048, 512), (512, 32_000)]
ROWS = (64, 256, 1024)
#: The largest error of int8 products, relative to the largest value: of weights and of inputs each half a step of 127.
ROUNDING = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 3e-2}


def maps(precision: str, weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """A product of the engine and of oneDNN.

    Args:
        precision: float32, bfloat16 or int8.
        weight, bias: (out, in) and (out,).
        x: inputs (rows, in).
    """
    pointwise = torch.ops.mkldnn._linear_pointwise
    if precision == "int8":
        scales = weight.abs().amax(1) / 127
        units = (weight / scales[:, None]).round().to(torch.int8)
        own = library().int8_linear(units.numpy(), scales.numpy(), bias.numpy())
        step = float(x.abs().max()) / 127
        rounded = ((x / step).round() + 128).to(torch.uint8)
        packed = torch.ops.onednn.qlinear_prepack(units, list(x.shape))
        zeros = torch.zeros(len(weight), dtype=torch.int32)
        more: tuple[Any, ...] = (packed, scales, zeros, bias, 1.0, 0, torch.float32, "none", [], "")
        other = partial(torch.ops.onednn.qlinear_pointwise, rounded, step, 128, *more)
    else:
        dtype = getattr(torch, precision)
        own = getattr(library(), f"{precision}_linear")(weight.numpy(), bias.numpy())
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), len(x))
        other = partial(pointwise, x.to(dtype), packed, bias.to(dtype), "none", [], "")
    return {"engine": partial(own.product, x.numpy()), "oneDNN": other}


def measured(precision: str, repeats: int) -> list[Row]:
    rows = []
    for inputs, outputs in SHAPES:
        weight, bias = torch.randn(outputs, inputs) * inputs**-0.5, torch.randn(outputs)
        for count in ROWS:
            x = torch.randn(count, inputs)
            calls = maps(precision, weight, bias, x)
            exact = torch.nn.functional.linear(x, weight, bias).numpy()
            for name, call in calls.items():
                error = np.abs(np.asarray(torch.as_tensor(call()).float()) - exact).max() / np.abs(exact).max()
                if error > ROUNDING[precision]:
                    raise SystemExit(f"{name} in {precision}: an error of {error:.2g}")
            times = rounds({name: partial(seconds, call, "cpu") for name, call in calls.items()}, repeats)
            billions = {name: count * inputs * outputs / statistics.median(each) / 1e9 for name, each in times.items()}
            ratios = [own / other for own, other in zip(times["engine"], times["oneDNN"], strict=True)]
            shape = {"precision": precision, "in": inputs, "out": outputs, "rows": count}
            found = {f"{name}, 10^9 multiply-adds/s": each for name, each in billions.items()}
            rows.append({**shape, **found, "time, engine/oneDNN": statistics.median(ratios)})
    return rows


def tables(result: dict[str, Any]) -> str:
    """The numbers of a result in Markdown."""
    facts, rows = result["environment"], result["products"]
    head = f"{facts['device']}, {facts['isa']}, PyTorch {facts['torch']}; commit {facts['commit']}, {facts['date']}"
    return f"{head}\n\n{table(rows, fields(rows[0]))}\n"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=15)
    add_files(parser, markdown="the table")
    args = parser.parse_args()
    check_files(parser, args)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    precisions = ["float32", "int8", *["bfloat16"] * hasattr(library(), "bfloat16_linear")]
    rows = [row for precision in precisions for row in measured(precision, args.repeats)]
    result = {"environment": environment("cpu"), "products": rows}
    write(args.out, result)
    write_tables(tables(result), args)


if __name__ == "__main__":
    main()
