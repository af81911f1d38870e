"""A release: the source distribution, the wheel that is built from it, and what is installed from that."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import commands
import pytest

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(kind: str, source: Path, out: Path) -> Path:
    """What a build of a folder makes: ``build_sdist`` or ``build_wheel``."""
    words = [sys.executable, "-c", BUILD, kind, str(out)]
    one_library = {**os.environ, "AMLP_FAIRSEQ_ISA": "generic"}  # all take minutes
    done = subprocess.run(words, cwd=source, check=True, capture_output=True, text=True, env=one_library)
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    checkout = folder / "checkout"
    files = subprocess.run(["git", "ls-files"], cwd=commands.ROOT, check=True, capture_output=True, text=True).stdout
    for name in files.splitlines():
        if (commands.ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes((commands.ROOT / name).read_bytes())
    with tarfile.open(built("build_sdist", checkout, folder)) as archive:
        archive.extractall(folder, filter="data")
    wheel = built("build_wheel", folder / f"amlp_fairseq-{version('amlp-fairseq')}", folder)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder / "site")]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder / "site"


def test_it_has_all_files(installed: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        left_out = {"__pycache__", "src"}  # and what is built
        return {str(path) for path in found if path.suffix != ".so" and not left_out & {*path.parts}}

    assert len([*(installed / "amlp_fairseq/engine").glob("_generic*.so")]) == 1
    assert files(installed / "amlp_fairseq") == files(commands.PLUGIN) | {
        f"configs/{name}" for name in files(commands.ROOT / "configs")
    }


def test_it_runs_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    script = installed / "bin/amlp-fairseq"
    done = subprocess.run(
        [sys.executable, str(script), "path"], cwd=tmp_path, env={"PYTHONPATH": str(installed)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == str(installed / "amlp_fairseq")
