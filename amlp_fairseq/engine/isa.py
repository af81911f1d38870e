"""The library for this processor: the engine is compiled once for each instruction set."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32

#: Options of GCC for all instruction sets.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fno-semantic-interposition", "-g0"]
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
ISAS["neon_dotprod"] = ("-march=armv8.2-a+dotprod",), frozenset({"asimd", "asimddp"})
ISAS["neon"] = ("-march=armv8-a",), frozenset({"asimd"})
ISAS["generic"] = (), frozenset()
#: What /proc/cpuinfo calls the flags of a processor, by its kind.
_FLAGS = {"x86_64": "flags", "aarch64": "Features"}
#: What is missing on other operating systems than Linux, by ``platform.system()``.
MISSING = {
    "Windows": "the engine is not compiled on Windows: it needs GCC's or Clang's vectors, and POSIX",
    "Darwin": "on macOS, where it was never tried, the engine has no instruction set but the generic one: which ones a "
    "processor has it reads in Linux' /proc/cpuinfo",
}

#: The environment variable that names an instruction set, for tests and reports of bugs.
FORCED = "AMLP_FAIRSEQ_ISA"
#: The environment variable that turns the engine off where it is ``torch``; see ``ops/backend.py``, too. Its values.
BACKEND, BACKENDS = "AMLP_FAIRSEQ_BACKEND", ("auto", "torch", "triton")


def processor_flags() -> set[str]:
    """Linux' names of what this processor has, if it is of x86-64 or aarch64."""
    start = _FLAGS.get(platform.machine())
    if start is None or not (cpuinfo := Path("/proc/cpuinfo")).is_file():
        return set()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return {flag for line in lines if line.startswith(start) for flag in line.split()}


def compiled(name: str) -> bool:
    """True if an instruction set is one of this kind of processor, on an operating system that has libraries."""
    machine = "aarch64" if name.startswith("neon") else "x86_64"
    return platform.system() != "Windows" and (name == "generic" or platform.machine() == machine)


def sources() -> int:
    """A number of the text of the libraries' sources; 0 where they are not, as in a wheel."""
    number = 0
    for path in sorted(Path(__file__).with_name("src").glob("*.h")):
        number = crc32(path.read_bytes(), number)
    return number


@cache
def load(name: str) -> ModuleType:
    """The library for an instruction set.

    Raises:
        ImportError: if there is none.
        ValueError: if it was compiled from other sources than those that are there now.
    """
    module = import_module(f"amlp_fairseq.engine._{name}")
    if (now := sources()) and getattr(module, "SOURCES", None) != now:
        folder = Path(__file__).parents[2]
        raise ValueError(
            f"{module.__file__} is of other sources than {Path(__file__).with_name('src')} has now: "
            f"cd {folder} && python setup.py build_ext --inplace --force"
        )
    return module


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
    """The engine's library.

    Raises:
        ImportError: if there is none, or the engine is turned off.
        ValueError: as :func:`fastest`, and for another value of the environment variable.
    """
    if (backend := os.environ.get(BACKEND, "auto")) not in BACKENDS:
        raise ValueError(f"{BACKEND}={backend}: choose one of {', '.join(BACKENDS)}")
    if backend == "torch":
        raise ImportError(f"the engine is turned off by {BACKEND}=torch")
    return fastest()


def fastest() -> ModuleType:
    """The library for the fastest instruction set of this processor for which there is one.

    Raises:
        ImportError: if there is none.
        ValueError: if ``AMLP_FAIRSEQ_ISA`` names an instruction set that this processor has not, or for an old library.
    """
    names = supported()
    if forced := os.environ.get(FORCED):
        if forced not in names:
            raise ValueError(f"{FORCED}={forced}: this processor has {', '.join(names)}")
        return load(forced)
    for name in names:
        try:
            return load(name)
        except ImportError:
            continue
    missing = MISSING.get(platform.system(), "a C++ compiler is needed when amlp-fairseq is installed")
    raise ImportError(f"the engine has not been compiled ({missing})")
