"""Sizes of what benchmarks/gpu_check.py checks: large on a GPU, small elsewhere."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """How much is checked.

    Attributes:
        conv, cov: names of the operators' cases; all if empty.
        dtypes: of the kernels' inputs.
        shape: B, C, H and k of the operators that are timed, and their fewest positions.
        model: sizes of the models that decode, as options.
        systems: models whose captured calls are compared.
        longest: words of the longest outputs of these, more than decoders have room for at first.
        lengths, decoding: arguments of these benchmarks.
        repeats: timed calls.
    """

    conv: tuple[str, ...]
    cov: tuple[str, ...]
    dtypes: tuple[str, ...]
    shape: tuple[int, int, int, int, int]
    model: str
    systems: tuple[str, ...]
    longest: int
    lengths: str
    decoding: str
    repeats: int


DTYPES = ("float32", "float16", "bfloat16")
BASE = "--embed-dim 512 --ffn-embed-dim 2048 --layers 6 --heads 8 --words 32000"
TOY = "--embed-dim 16 --ffn-embed-dim 16 --layers 1 --heads 2 --words 40"
SMALL_QUERY = "--embed-dim 16 --heads 2 --inner-dim 4 --batch 1 --repeats 1"
SIZES = {
    "full": Size(
        (), (), DTYPES, (16, 1024, 16, 31, 1024), BASE, ("ar", "ibdecoder", "ibdecoder-sa", "cmlmc"), 70,
        "--lengths 256 1024 4096 --dtype bfloat16 --repeats 20 --seconds 2",
        "--systems transformer ar ibdecoder cmlmc --sentences 8 --repeats 2 --cuda-graphs", 20,
    ),
    "small": Size(
        ("causal", "steps of 2", "history before the outputs"), ("plain", "padding left, right, both"), DTYPES,
        (2, 32, 2, 7, 64), TOY, ("ar", "ibdecoder", "cmlmc"), 70, f"{SMALL_QUERY} --lengths 16 64",
        "--systems transformer ar ibdecoder --precisions float32 --sentences 4 --repeats 1", 3,
    ),
    "tiny": Size(
        ("causal",), ("two positions",), ("float32",), (1, 16, 2, 3, 8), TOY, ("ar",), 20,
        f"{SMALL_QUERY} --lengths 8 --systems SDPA AMLP-Cov",
        "--systems ibdecoder --precisions float32 --sentences 1 --repeats 1 --beams 1", 1,
    ),
}  # fmt: skip
