"""Trainings that are killed, told to share a folder, or find a damaged checkpoint."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from conftest import TINY

from amlp_fairseq.compat.training_folder import RECIPE

UPDATES = 40


def words(data: Path, row: str, save_dir: Path) -> list[Any]:
    often = ["--max-update", UPDATES, "--save-interval-updates", "7", "--keep-interval-updates", "2"]
    return [data, "--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY, *often, "--save-dir", save_dir]


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == UPDATES
    return state["model"]


def updates(folder: Path) -> int:
    """Those of the newest checkpoint."""
    return max((int(path.stem.split("_")[-1]) for path in folder.glob("checkpoint_*_*.pt")), default=0)


@pytest.mark.parametrize("row", ["aan", "ibdecoder", "lightconv", "cmlmc"])
@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.long)], ids=["bounded", "long"])
def test_a_killed_training_ends_with_the_same_parameters(row: str, kills: int, data: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, with checkpoints of all ages, then the same command again, until it ends."""
    commands.run("amlp_fairseq.recipes.train", *words(data, row, tmp_path / "whole"))
    rng, killed = random.Random(row), tmp_path / "killed"
    for count in range(kills + 1):
        training = commands.start("amlp_fairseq.recipes.train", *words(data, row, killed))
        if count < kills:
            after = rng.randrange(updates(killed), UPDATES // 2 if count == 0 else UPDATES)
            while training.is_alive() and updates(killed) <= after:
                time.sleep(0.001)
            training.join(rng.uniform(0, 0.1))
            training.kill()
        training.join()
    assert training.exitcode == 0
    expected, found = (parameters(tmp_path / name) for name in ("whole", "killed"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_a_damaged_last_checkpoint_is_named_and_the_newest_whole_one_offered(
    damage: str, data: Path, tmp_path: Path
) -> None:
    command = ["amlp_fairseq.recipes.train", *words(data, "ibdecoder", tmp_path)]
    commands.run(*command)
    last = tmp_path / "checkpoint_last.pt"
    expected = parameters(tmp_path)
    whole = last.read_bytes()
    last.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "foreign": b"hello\n" * 100}[damage])
    (newest,) = tmp_path.glob(f"checkpoint_*_{updates(tmp_path)}.pt")
    refusal = commands.run(*command, check=False).splitlines()[-1]
    assert f"{last} is damaged or no checkpoint" in refusal
    assert f"--restore-file {newest} goes on" in refusal
    shutil.copy(newest, tmp_path / "kept.pt")
    commands.run(*command, "--restore-file", tmp_path / "kept.pt")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in parameters(tmp_path).items())


@pytest.mark.parametrize("row", ["ibdecoder", "transformer"])
def test_two_trainings_in_one_folder(row: str, data: Path, tmp_path: Path) -> None:
    """Of the plugin's models and of fairseq's."""
    command = ["amlp_fairseq.recipes.train", *words(data, row, tmp_path), "--max-update", "100000"]
    first = commands.start(*command)
    try:
        while not (tmp_path / RECIPE).exists() or not list(tmp_path.glob("checkpoint_*.pt")):
            assert first.is_alive()
            time.sleep(0.05)
        refusal = commands.run(*command, "--max-update", "1", check=False)
        assert f"--save-dir {tmp_path}: another training writes its checkpoints there" in refusal
        assert first.is_alive()
    finally:
        first.kill()
        first.join()
    printed = commands.run(*command, "--max-update", "1")
    assert "the training has had its" in printed
