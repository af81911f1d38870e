"""The library for this processor: the engine is compiled once for each instruction set."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from pathlib import Path
from types import ModuleType

#: The instruction sets from the fastest on, each with its options of GCC and the flags of Linux that it needs.
ISAS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {}
_AVX2 = ("-mavx2", "-mfma", "-mf16c"), frozenset({"avx2", "fma", "f16c"})
_AVX512 = (
    (*_AVX2[0], "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"),
    _AVX2[1] | {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
)
_AVX512_VNNI = (*_AVX512[0], "-mavx512vnni"), _AVX512[1] | {"avx512_vnni"}
_AVX512_BF16 = (*_AVX512_VNNI[0], "-mavx512bf16"), _AVX512_VNNI[1] | {"avx512_bf16"}
ISAS["amx"] = (
    (*_AVX512_BF16[0], "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    _AVX512_BF16[1] | {"amx_tile", "amx_int8", "amx_bf16"},
)
ISAS["avx512_bf16"] = _AVX512_BF16
ISAS["avx512_vnni"] = _AVX512_VNNI
ISAS["avx512"] = _AVX512
ISAS["avx_vnni"] = (*_AVX2[0], "-mavxvnni"), _AVX2[1] | {"avx_vnni"}
ISAS["avx2"] = _AVX2
ISAS["generic"] = (), frozenset()

#: The environment variable that names an instruction set, for tests and reports of bugs.
FORCED = "AMLP_FAIRSEQ_ISA"
#: The environment variable that turns the engine off where it is ``torch``; see ``ops/backend.py``, too.
BACKEND = "AMLP_FAIRSEQ_BACKEND"


def processor_flags() -> set[str]:
    """Linux' names of what this x86-64 processor has."""
    if platform.machine() != "x86_64" or not (cpuinfo := Path("/proc/cpuinfo")).is_file():
        return set()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def tiles_granted() -> bool:
    """Ask Linux for the tiles of AMX for this process and those that it forks; x86-64 only."""
    import ctypes

    arch_prctl, request, tile_data = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM; XFEATURE_XTILEDATA
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def supported() -> list[str]:
    """The instruction sets of this processor, from the fastest on. AMX is one if Linux grants it."""
    flags = processor_flags()
    return [name for name, (_, needed) in ISAS.items() if needed <= flags and (name != "amx" or tiles_granted())]


def library_isa() -> str:
    """The instruction set of :func:`library`, which may raise the same."""
    return library().__name__.rpartition("._")[2]


def library() -> ModuleType:
    """The engine's library for the fastest instruction set of this processor for which there is one.

    Raises:
        ImportError: if there is none, or the engine is turned off.
        ValueError: if ``AMLP_FAIRSEQ_ISA`` names an instruction set that this processor has not.
    """
    if os.environ.get(BACKEND) == "torch":
        raise ImportError(f"the engine is turned off by {BACKEND}=torch")
    names = supported()
    if forced := os.environ.get(FORCED):
        if forced not in names:
            raise ValueError(f"{FORCED}={forced}: this processor has {', '.join(names)}")
        return import_module(f"amlp_fairseq.engine._{forced}")
    for name in names:
        try:
            return import_module(f"amlp_fairseq.engine._{name}")
        except ImportError:
            continue
    raise ImportError("the engine has not been compiled (a C++ compiler is needed when amlp-fairseq is installed)")
