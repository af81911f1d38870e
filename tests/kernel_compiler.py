"""What Triton compiles the operators' kernels to, for GPUs that this machine need not have.

The launches are production's own, on tensors without memory, so that their types, alignments and options are, too.
``python tests/kernel_compiler.py ARCHITECTURE [CASES]`` prints a line of JSON for every binary, of the cases that a
regular expression matches; ``… signatures`` one for every different signature with which batches of many sizes launch a
kernel. Not in Triton's interpreter.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ |= {"TRITON_INTERPRET": "0", "TRITON_DUMP_PTXAS_LOG": "1"}

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from amlp_fairseq.ops.amlp_cov import kernels as cov
from amlp_fairseq.ops.dynamic_conv import kernels as conv

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: Architectures other than NVIDIA's, by their names in Triton.
OTHERS = {"gfx942": GPUTarget("hip", "gfx942", 64)}


class Device:
    """Stands in for Triton's driver."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def convolve(
    dtype: torch.dtype, k: int, shared: bool, plain: bool = False, T: int = 512, B: int = 8, batch_first: bool = False
) -> None:
    """A convolution at production's sizes, C = 1024 and H = 16, forward and backward."""
    C, H = 1024, 16
    x = empty(B, T, C, dtype=dtype).transpose(0, 1) if batch_first else empty(T, B, C, dtype=dtype)
    if shared:
        weight = empty(H, k, dtype=dtype)
    else:
        weight = empty(B, T, H, k, dtype=dtype).transpose(0, 1) if batch_first else empty(T, B, H, k, dtype=dtype)
    seed, softmax, dropout = (None, False, 0.0) if plain else (empty(1, dtype=torch.int64), True, 0.1)
    out, logsumexp = conv.forward(x, weight, seed, k - 1, T, 1, softmax, dropout)
    conv.backward(out, x, weight, logsumexp, seed, k - 1, 1, softmax, dropout)


def correlate(
    dtype: torch.dtype, d: int, e: int, plain: bool = False, N: int = 1024, B: int = 8, batch_first: bool = False
) -> None:
    """Covariances of 8 heads, forward and backward."""
    H = 8

    def by_head(size: int) -> Tensor:
        x = empty(B, N, H, size, dtype=dtype) if batch_first else empty(N, B, H, size, dtype=dtype).transpose(0, 1)
        return x.transpose(1, 2)

    x, y = by_head(d), by_head(e)
    temperature, mask = (None, None) if plain else (empty(H, dtype=dtype), empty(B, N, dtype=torch.bool))
    out, *kept = cov.forward(x, y, temperature, mask, not plain)
    cov.backward(out, x, y, temperature, mask, *kept)


#: The cases that are compiled.
CASES: dict[str, Callable[[], None]] = {
    **{f"dynamic_conv {name} k=31": lambda t=dtype: convolve(t, 31, False) for name, dtype in DTYPES.items()},
    **{f"light_conv {name} k=31": lambda t=dtype: convolve(t, 31, True) for name, dtype in DTYPES.items()},
    **{f"dynamic_conv float32 k={k}": lambda k=k: convolve(torch.float32, k, False) for k in (3, 7, 15, 97)},
    "light_conv float32 k=97": lambda: convolve(torch.float32, 97, True),
    "dynamic_conv float16 k=31, neither softmax nor dropout": lambda: convolve(torch.float16, 31, False, plain=True),
    **{f"cross_covariance {name} 64 by 64": lambda t=dtype: correlate(t, 64, 64) for name, dtype in DTYPES.items()},
    "cross_covariance float32 128 by 128": lambda: correlate(torch.float32, 128, 128),
    "cross_covariance float16 64 by 16, plain": lambda: correlate(torch.float16, 64, 16, plain=True),
}  # fmt: skip


def binaries(target: GPUTarget, cases: str) -> Iterator[dict[str, Any]]:
    """Each kernel that a case needs, compiled for a GPU.

    Yields:
        case and kernel; bytes of registers that are spilled (of NVIDIA's), and of shared memory; the types of offsets.
    """
    run, compiled = JITFunction.run, []

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        known, printed = len(kernel.device_caches[0][0]), io.StringIO()
        with contextlib.redirect_stdout(printed):
            binary = run(kernel, *arguments, grid=None, warmup=True, **options)
        if len(kernel.device_caches[0][0]) > known:
            spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", printed.getvalue())
            offsets = re.findall(r"tt\.addptr .* : .*, (?:tensor<\S*x)?(i\d+)>? loc", binary.asm["ttir"])
            compiled.append(
                {
                    "kernel": kernel.__name__,
                    "spilled": sum(map(int, spills)) if target.backend == "cuda" and spills else None,
                    "shared": binary.metadata.shared,
                    "offsets": sorted(set(offsets)),
                    "precisions": sorted(set(re.findall(r"inputPrecision = (\w+)", binary.asm["ttir"]))),
                }
            )

    driver.set_active(Device(target))
    JITFunction.run = compile_only
    for case in filter(re.compile(cases).search, CASES):
        CASES[case]()
        yield from ({"case": case, **each} for each in compiled)
        compiled.clear()


def signatures() -> Iterator[dict[str, Any]]:
    """Of each kernel those with which batches of many sizes launch it; nothing is compiled."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}

    def note(key: Any, fn: Any, **_: Any) -> bool:
        seen.setdefault((fn.name, str(key)), {"case": case, "kernel": fn.name, "signature": str(key)})
        return True  # not compiled

    driver.set_active(Device(GPUTarget("cuda", 80, 32)))
    triton.knobs.runtime.jit_cache_hook = note
    for batch in (1, 2, 3, 8, 16, 17):
        for length in (17, 32, 99, 512):
            for batch_first in (False, True):
                case = f"{batch} sentences of {length} positions, batch_first={batch_first}"
                options: dict[str, Any] = {"B": batch, "batch_first": batch_first}
                convolve(torch.bfloat16, 31, False, T=length, **options)
                convolve(torch.bfloat16, 31, True, T=length, **options)
                correlate(torch.bfloat16, 64, 64, N=length, **options)
    yield from seen.values()


if __name__ == "__main__":
    architecture = sys.argv[1]
    if architecture == "signatures":
        found = signatures()
    else:
        if architecture in OTHERS:
            torch.version.hip = "without a device"
        found = binaries(OTHERS.get(architecture) or GPUTarget("cuda", int(architecture), 32), [*sys.argv, ""][2])
    for line in found:
        print(json.dumps(line), flush=True)  # noqa: T201
