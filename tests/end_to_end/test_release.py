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
    (sources,) = installed.parent.glob("amlp_fairseq-*/amlp_fairseq/engine/src")
    names = [{path.name for path in folder.iterdir()} for folder in (sources, commands.PLUGIN / "engine/src")]
    assert names[0] == names[1]
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


def test_it_trains_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    """The editable install of the tests' environment does not win; the configurations are installed, too."""
    (tmp_path / "raw").mkdir()
    for name in ("train", "valid", "test"):
        for language in ("en", "de"):
            (tmp_path / f"raw/{name}.{language}").write_text("w1 w2 w3\nw4 w5\n", encoding="utf-8")
    data = commands.preprocess(tmp_path / "raw", tmp_path / "data")
    words = [data, "--row", "ibdecoder", "--scale", "embedded", "--corpus", "embedded", "--max-update", 1, "--cpu"]
    printed = commands.fresh(
        *(sys.executable, installed / "bin/amlp-fairseq", "train", *words, "--save-dir", tmp_path / "model"),
        cwd=tmp_path, env={"PYTHONPATH": str(installed)},
    ).stdout  # fmt: skip
    assert f"--user-dir {installed / 'amlp_fairseq'} --task translation_interleaved" in printed
    assert (tmp_path / "model/checkpoint_last.pt").exists()
