"""Operators in C++, compiled by ``amlp-fairseq compile`` for the processor of this machine."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from amlp_fairseq.common.files import whole
from amlp_fairseq.ops.backend import VARIABLE

#: Compiler flags. Math errors and traps are off: they prevent the vectorisation of loops.
FLAGS = "-std=c++20 -O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC".split()
LIBRARIES = ("-ltorch_cpu", "-lc10")

#: Source files of all libraries.
SOURCES = sorted(Path(__file__).parent.glob("*/kernels.cpp"))

logger = logging.getLogger(__name__)


def compile_source(source: Path) -> Path:
    """Compile a C++ file unless its library exists, and return the path of the library.

    Raises:
        ValueError: with the reason, if the file cannot be compiled or its library cannot be loaded.
    """
    if sys.platform != "linux":
        raise ValueError(f"operators are compiled on Linux only, not on {sys.platform}")
    library, torch_folder = library_of(source), Path(torch.__file__).parent
    if _loads(library):
        return library
    include, lib = torch_folder / "include", torch_folder / "lib"
    compiler = os.environ.get("CXX", "c++")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
        with whole(library, unique=True) as (part,):
            _run([*shlex.split(compiler), *FLAGS, *includes, str(source), "-o", str(part), f"-L{lib}", *LIBRARIES])
            torch.ops.load_library(part)
    except OSError as error:
        raise ValueError(f"{library}: {error}") from error
    return library


def _run(command: list[str]) -> None:
    """Run the compiler; raise ValueError with its output if it fails."""
    compiler = command[0]
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        message = f"there is no C++ compiler {compiler} (on Debian: apt-get install g++), or name one in CXX"
        raise ValueError(message) from None
    if process.returncode != 0:
        raise ValueError(f"{compiler} ended with {process.returncode}:\n{process.stderr.strip()}")


@functools.cache
def loaded(source: Path) -> bool:
    """True if the library of a source is compiled and was loaded; False with ``AMLP_FAIRSEQ_BACKEND=torch``."""
    if os.environ.get(VARIABLE) == "torch" or sys.platform != "linux":
        return False
    try:
        return _loads(library_of(source))
    except ValueError:  # no home folder, so that nothing is compiled
        return False


def _loads(library: Path) -> bool:
    """Load a library; False if it does not exist or cannot be loaded."""
    if not os.path.exists(library):  # False also without permission, where Path.exists raises an error
        return False
    try:
        torch.ops.load_library(library)
    except OSError as error:
        logger.warning(f"{library} cannot be loaded, amlp-fairseq compile makes it anew: {error}")
        return False
    return True


def library_of(source: Path) -> Path:
    """Path of the library of a source; its name contains a hash of all its dependencies.

    Raises:
        ValueError: if there is no home folder.
    """
    headers = sorted(source.parent.parent.glob("*/*.h"))
    texts = [path.read_text(encoding="utf-8") for path in (*headers, source)]
    dependencies = "\n".join([*texts, torch.__version__, *FLAGS, _processor()])
    name = f"{source.parent.name}-{hashlib.sha256(dependencies.encode()).hexdigest()[:16]}.so"
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "amlp_fairseq" / name
    except RuntimeError:
        raise ValueError("there is no home folder for the libraries: name a folder in XDG_CACHE_HOME") from None


def _processor() -> str:
    """Properties of the processor on which ``-march=native`` depends."""
    first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    return "\n".join(line for line in first.splitlines() if line.startswith(("model name", "flags", "Features")))
