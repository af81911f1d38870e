"""Trainings by two processes on a CPU. tests/unit/training/test_train.py has that they
equal one with twice the batches."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from small_systems import SYSTEMS, TINY

#: What a training logs once it has made ten updates, by itself or as amlp-fairseq shows it.
WRITTEN = r"num_updates=\d\d|\d\d of 1000000 updates"


def words(row: str, data: Path, save_dir: Path, updates: int) -> list[str]:
    """The command line of a training."""
    own = [data, "--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY, "--max-update", updates]
    own += ["--update-freq", "1", "--log-interval", "1", "--log-format", "simple", "--save-dir", save_dir]
    return [str(word) for word in own]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


def join(rank: int, port: int, arguments: list[str], output: Path) -> None:
    """One of two processes, as torchrun starts them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    commands._call("amlp_fairseq.training.train", arguments, Path(os.devnull), output, Path.cwd(), None)


@contextmanager
def two(arguments: list[str], folder: Path) -> Iterator[list[Any]]:
    """Both processes, which are gone afterwards."""
    port, outputs = free_port(), [folder / f"rank-{rank}" for rank in range(2)]
    processes: list[Any] = [
        commands.forks.Process(target=join, args=(rank, port, arguments, outputs[rank])) for rank in range(2)
    ]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def assert_trained(save_dir: Path, printed: str, updates: int) -> None:
    state = torch.load(save_dir / "checkpoint_last.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == updates
    assert all(torch.isfinite(parameter).all() for parameter in state["model"].values())
    assert "training on 2 devices" in printed


def test_two_processes_train(data: Path, tmp_path: Path) -> None:
    with two(words("transformer_abc", data, tmp_path / "trained", 3), tmp_path) as processes:
        for process in processes:
            process.join()
            assert process.exitcode == 0
    assert_trained(tmp_path / "trained", (tmp_path / "rank-0").read_text(encoding="utf-8"), 3)


@pytest.mark.long
@pytest.mark.parametrize("row", SYSTEMS)
def test_torchrun_trains_every_system(row: str, data: Path, tmp_path: Path) -> None:
    programs = [str(Path(sys.executable).with_name(name)) for name in ("torchrun", "amlp-fairseq")]
    torchrun = [programs[0], "--nproc_per_node", "2", "--master_port", str(free_port()), "--no-python", programs[1]]
    printed = commands.fresh(*torchrun, "train", *words(row, data, tmp_path / "trained", 8)).stdout
    assert_trained(tmp_path / "trained", printed, 8)


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.long)])
def test_when_one_is_killed_the_other_ends(killed: int, data: Path, tmp_path: Path) -> None:
    """By itself, with an error, within a minute; a non-autoregressive system that has made ten updates."""
    with two(words("cmlmc_amlp_cov", data, tmp_path / "trained", 10**6), tmp_path) as processes:
        log = tmp_path / "rank-0"
        while not log.exists() or not re.search(WRITTEN, log.read_text(encoding="utf-8")):
            assert all(process.is_alive() for process in processes)
            time.sleep(0.05)
        processes[killed].kill()
        other = processes[1 - killed]
        other.join(60)
        assert other.exitcode not in (None, 0)
    printed = (tmp_path / f"rank-{1 - killed}").read_text(encoding="utf-8")
    assert re.search(r"Error: .*(gloo|peer|[Cc]onnection)", printed)


@pytest.mark.long
@pytest.mark.parametrize("killed", range(2))
def test_when_torchrun_loses_one_it_ends_the_other(killed: int, data: Path, tmp_path: Path) -> None:
    programs = [str(Path(sys.executable).with_name(name)) for name in ("torchrun", "amlp-fairseq")]
    command = [programs[0], "--nproc_per_node", "2", "--master_port", str(free_port()), "--no-python", programs[1]]
    command += ["train", *words("ibdecoder", data, tmp_path / "trained", 10**6)]
    output = tmp_path / "output"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with output.open("wb") as file:
        agent = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    try:
        while not re.search(WRITTEN, output.read_text(encoding="utf-8")):
            assert agent.poll() is None
            time.sleep(0.1)
        ranks = sorted(
            pid for pid in children(agent.pid) if b"amlp-fairseq" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        assert len(ranks) == 2
        os.kill(ranks[killed], signal.SIGKILL)
        assert agent.wait(60) != 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    finally:
        agent.kill()
        agent.wait()


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(word) for word in found.split()]
