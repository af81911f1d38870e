"""The tests on every supported Python, torch and fairseq; started by scripts/test_matrix.sh."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12")
TORCHES = ("2.11.0", "2.14.1")  # the oldest and the newest; triton 3.6 and 3.8 come with them
#: Without build isolation fairseq's extensions are compiled against the installed torch.
BUILD = ("pip", "setuptools>=77,<82", "wheel", "cython")


@nox.session(python=PYTHONS)
@nox.parametrize("torch", TORCHES)
def tests(session: nox.Session, torch: str) -> None:
    """With the newest of all that has no upper bound, numpy among them.

    PyPI's fairseq 0.12.2 is not here: it has no wheel for Python 3.10, its source lacks a file that its build needs
    (fairseq/clib/libbase/balanced_assignment.cpp), and Python 3.11 cannot import it.
    """
    session.chdir(ROOT)
    numpy = "numpy<2.4" if torch == TORCHES[0] else "numpy"  # the interpreter of triton 3.6 needs it; kernels do not
    session.install(f"torch=={torch}", numpy, *BUILD)
    fairseq = ("--no-deps", "--require-hashes", "-r", "scripts/fairseq.txt")
    session.install("--no-build-isolation", *fairseq, env={"CFLAGS": "-O1 -g0"})
    session.install("--no-build-isolation", "-e", ".[train,test,bench]")
    session.run("python", "-m", "pytest", "-q", *session.posargs, env={"OMP_NUM_THREADS": "1"})
