"""The engine's other tests with a library that looks for accesses outside memory and for undefined behaviour."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import commands
import pytest

from amlp_fairseq.engine import isa

FLAGS = (
    "-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fno-omit-frame-pointer "
    "-D_GLIBCXX_ASSERTIONS -ffp-contract=off"  # the last: checks between operations decide which ones are contracted
)
#: Tests of how libraries are found, of what needs more than this one, and of memory, of which the sanitizer keeps some.
ELSEWHERE = (
    "sanitizers",
    "fastest_library",
    "needs_no_pytorch",
    "without_a_description",
    "memory_is_lost",
    "in_memory_once",
)


def run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, "") for name in isa.supported()),
        *((name, " -DAMLP_EMULATE_AMX") for name in ("generic", "avx512_vnni") if name in isa.supported()),
    ],
)
def test_no_access_outside_memory_and_nothing_undefined(name: str, more: str, tmp_path: Path) -> None:
    """Also with AMX's instructions as functions in C++, over what else multiplies few rows."""
    for folder in ("amlp_fairseq", "configs", "tests", "examples"):
        shutil.copytree(commands.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(commands.ROOT / file, tmp_path / file)
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), isa.FORCED: name}
    # Which one is used depends on setuptools.
    settings |= dict.fromkeys(("CFLAGS", "CXXFLAGS", "LDFLAGS"), FLAGS + more)
    built = run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=tmp_path, env=settings)
    assert built.returncode == 0, built.stderr[-5000:]

    libraries = "libasan.so", "libstdc++.so"  # the second because Triton throws when it is imported
    paths = [run("g++", f"-print-file-name={each}", cwd=tmp_path).stdout.strip() for each in libraries]
    settings |= {"LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"}
    (library,) = (tmp_path / "amlp_fairseq/engine").glob("*.so")
    assert all(check in library.read_bytes() for check in (b"__asan_report_load", b"__ubsan_handle"))
    assert (b"tiles without a configuration" in library.read_bytes()) == bool(more)
    tests = "-m", "pytest", "-q", "-x", "--capture=sys", "-p", "no:cacheprovider", "tests/unit/engine"
    chosen = " and ".join(f"not {test}" for test in ELSEWHERE)
    done = run(sys.executable, *tests, "-k", chosen, cwd=tmp_path, env=settings)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
