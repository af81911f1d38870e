"""The kernels as production launches them, compiled for GPUs that this machine need not have."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, fresh
from launched import kernel_names

from amlp_fairseq.common.versions import installed
from amlp_fairseq.ops.amlp_cov import kernels as amlp_cov
from amlp_fairseq.ops.dynamic_conv import kernels as dynamic_conv

pytestmark = pytest.mark.slow

#: Bytes of shared memory that one block may use: A100, H100.
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
#: All cases for the A100; for the H100, whose code differs little, those with the most registers.
CASES = {80: "", 90: "(float32 (k=31|128)|dynamic_conv bfloat16)"}
KERNELS = {name for module in (amlp_cov, dynamic_conv) for name in kernel_names(module)}


@pytest.fixture
def compiler(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Output of kernel_compiler.py; it takes half a minute, so pytest's cache keeps it while no source changes."""
    program = ROOT / "tests" / "kernel_compiler.py"
    sources = [program, *sorted((ROOT / "amlp_fairseq" / "ops").rglob("*.py"))]
    digest = hashlib.sha256(b"".join(map(Path.read_bytes, sources)) + version("triton").encode()).hexdigest()

    def run(*arguments: object) -> list[dict[str, Any]]:
        key = f"amlp_fairseq/kernels/{'_'.join(str(argument)[:6] for argument in arguments)}"
        known = request.config.cache.get(key, None)
        if known is None or known["of"] != [digest, *map(str, arguments)]:
            environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
            printed = fresh(sys.executable, program, *arguments, env=environment).stdout
            found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
            known = {"of": [digest, *map(str, arguments)], "found": found}
            request.config.cache.set(key, known)
        return list(known["found"])

    return run


@pytest.mark.parametrize("capability", sorted(SHARED_MEMORY))
def test_no_kernel_spills_many_registers(capability: int, compiler: Callable[..., list[dict[str, Any]]]) -> None:
    """Nor takes more shared memory than there is, nor has offsets of 32 bits."""
    binaries = compiler(capability, CASES[capability])
    assert {binary["kernel"] for binary in binaries} == KERNELS
    assert len(KERNELS) == 7
    # In float32 the fastest launches spill some, by triton 3.8 up to 1540 bytes.
    most = 1500 if (installed("triton") or (0, 0)) < (3, 8) else 1600
    spilled = {(binary["case"], binary["kernel"]): binary["spilled"] for binary in binaries if binary["spilled"] != 0}
    assert all(0 < bytes_ <= most and "float32" in case for (case, _), bytes_ in spilled.items()), spilled
    assert [binary for binary in binaries if binary["shared"] > SHARED_MEMORY[capability]] == []
    assert [binary for binary in binaries if binary["offsets"] != ["i64"]] == []
    float32 = [binary for binary in binaries if "conv float32" in binary["case"]]
    assert {precision for binary in float32 for precision in binary["precisions"]} == {"tf32x3"}


def test_amds_gpus_get_products_that_triton_has_for_them(compiler: Callable[..., list[dict[str, Any]]]) -> None:
    binaries = compiler("gfx942", "dynamic_conv float32 k=31")
    assert len(binaries) == 3
    assert {tuple(binary["precisions"]) for binary in binaries} == {()}  # not of tf32


def test_no_size_of_batch_compiles_anything_anew(compiler: Callable[..., list[dict[str, Any]]]) -> None:
    found = compiler("signatures")
    launched = Counter(re.sub(r".*\.", "", signature["kernel"]) for signature in found)
    # Forward is another kernel for shared weights.
    assert launched == {kernel: 1 + (kernel == "_forward_kernel") for kernel in KERNELS}, found
