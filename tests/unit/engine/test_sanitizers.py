"""The engine's other tests with a library that looks for accesses outside memory and for undefined behaviour."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest

from amlp_fairseq.engine import isa

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"


@pytest.mark.long
@pytest.mark.parametrize("name", [isa.supported()[0], "avx2", "generic"])
def test_no_access_outside_memory_and_nothing_undefined(name: str, tmp_path: Path) -> None:
    if name not in isa.supported():
        pytest.skip(f"this processor has no {name}")
    for folder in ("amlp_fairseq", "configs", "tests", "examples"):
        shutil.copytree(commands.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(commands.ROOT / file, tmp_path / file)
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), isa.FORCED: name, "CFLAGS": FLAGS, "LDFLAGS": FLAGS}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tmp_path, env=settings, capture_output=True, check=True)
    names = "libasan.so", "libstdc++.so"  # the second because Triton throws when it is imported
    paths = [subprocess.run(["g++", f"-print-file-name={each}"], capture_output=True, text=True) for each in names]
    settings |= {
        "LD_PRELOAD": " ".join(each.stdout.strip() for each in paths),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/unit/engine"]
    others = " and ".join(f"not {other}" for other in isa.ISAS if other != name and name not in other)
    others += " and not sanitizers and not fastest_library and not needs_no_pytorch and not without_a_description"
    done = subprocess.run([*tests, "-k", others], cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
