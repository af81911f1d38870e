"""The wheels of scripts/build_wheels.sh, installed as the Dockerfile does it: no compiler, no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import commands
import pytest

#: What installing needs besides Python; no compiler is among it.
PROGRAMS = ("bash", "sh", "env")


def install_step() -> str:
    """The command of the Dockerfile that installs the wheels."""
    text = (commands.ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    [step] = re.findall(r"^RUN (plugin=.*)$", text, flags=re.MULTILINE)
    return step


@pytest.mark.long
def test_wheels_need_neither_compiler_nor_checkout(tmp_path: Path) -> None:
    wheels, venv, empty = tmp_path / "wheels", tmp_path / "venv", tmp_path / "empty"
    # Set on the machines that build documentation: fairseq's setup.py then leaves all its extensions out.
    environment = {"PYTHON": sys.executable, "TMPDIR": str(tmp_path), "READTHEDOCS": "True"}
    built = commands.fresh("bash", commands.ROOT / "scripts/build_wheels.sh", wheels, env=environment)
    names = sorted(path.name.split("-")[0] for path in wheels.iterdir())
    assert names == ["amlp_fairseq", "antlr4_python3_runtime", "fairseq_fixed"], built.stdout
    assert not list(tmp_path.glob("tmp.*")), "the build left something in TMPDIR"

    tools = tmp_path / "bin"
    tools.mkdir()
    for name in PROGRAMS:
        (tools / name).symlink_to(f"/usr/bin/{name}")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    empty.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "http", "SSL"))}
    clean = {**kept, "PATH": f"{venv}/bin:{tools}", "HOME": str(empty)}

    def here(*words: str) -> str:
        done = subprocess.run(words, cwd=empty, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    here("pip", "install", "-qq", "torch==2.13.0")
    here("sh", "-c", install_step().replace("/wheels", str(wheels)).replace("pip install", "pip install -qq"))
    assert "usage: amlp-fairseq COMMAND" in here("amlp-fairseq", "--help")
    assert here("amlp-fairseq", "path").strip().startswith(str(venv))
    here("python", "-c", "import torch, fairseq.libnat, fairseq.libbleu, fairseq.data.data_utils_fast")
    here("amlp-fairseq", "prepare", "embedded", "data")
    assert (empty / "data/data-bin/dict.de.txt").exists()
