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
from small_systems import TINY

from amlp_fairseq.common.training_folder import RECIPE

UPDATES = 30


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


@pytest.mark.parametrize(
    ("row", "kills"),
    [
        *(pytest.param(row, 2, id=f"bounded-{row}") for row in ("ibdecoder", "cmlmc")),
        *(
            pytest.param(row, 25, id=f"long-{row}", marks=pytest.mark.long)
            for row in ("aan", "ibdecoder", "lightconv", "cmlmc")
        ),
    ],
)
def test_a_killed_training_ends_with_the_same_parameters(row: str, kills: int, data: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, with checkpoints of all ages, then the same command again, until it ends."""
    commands.run("amlp_fairseq.training.train", *words(data, row, tmp_path / "whole"))
    rng, killed = random.Random(row), tmp_path / "killed"
    for count in range(kills + 1):
        training = commands.start("amlp_fairseq.training.train", *words(data, row, killed))
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


@pytest.mark.parametrize(("row", "precision"), [("ibdecoder", "--bf16"), ("aan", "--fp16")])
def test_parameters_of_16_bits_go_on_with_those_in_float32(
    row: str, precision: str, data: Path, tmp_path: Path
) -> None:
    """fairseq keeps only the rounded ones. The scale of ``--fp16``'s loss, which doubles
    after a number of updates, goes on, too."""
    scale = ["--fp16-init-scale", "1", "--fp16-scale-window", "5"] if precision == "--fp16" else []
    for name, updates in (("whole", [UPDATES]), ("stopped", [13, UPDATES])):
        for count in updates:
            command = [*words(data, row, tmp_path / name), precision, *scale, "--max-update", count]
            commands.run("amlp_fairseq.training.train", *command)
    expected, found = (parameters(tmp_path / name) for name in ("whole", "stopped"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_was_changed_in_a_checkpoint_is_what_goes_on(data: Path, tmp_path: Path) -> None:
    """Not the parameters in float32 of before it; fairseq's average_checkpoints.py, for one, keeps the optimizer."""
    command = [*words(data, "ibdecoder", tmp_path), "--bf16"]
    commands.run("amlp_fairseq.training.train", *command, "--max-update", 3)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    name = "decoder.layers.0.fc1.weight"
    state["model"][name].zero_()
    torch.save(state, tmp_path / "checkpoint_last.pt")
    commands.run("amlp_fairseq.training.train", *command, "--max-update", 4, "--lr", "1e-9")
    found = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["model"][name]
    assert found.float().abs().max() < 1e-3


def test_patience_goes_on(data: Path, tmp_path: Path) -> None:
    """A training that was stopped ends where it would have ended, and one that has ended makes no update more."""
    learning_nothing = ["--lr", "1e-12", "--maximize-best-checkpoint-metric", "--patience", "3"]

    def train(name: str, updates: int) -> str:
        command = [*words(data, "ibdecoder", tmp_path / name), *learning_nothing, "--validate-interval-updates", "4"]
        return commands.run("amlp_fairseq.training.train", *command, "--eval-bleu", "--max-update", updates)

    def ended(name: str) -> int:
        state = torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=False)
        return int(state["optimizer_history"][-1]["num_updates"])

    train("whole", 100)
    train("stopped", 8)
    train("stopped", 100)
    assert 8 < ended("whole") == ended("stopped") < 100
    assert "the training has stopped early" in train("whole", 100)
    assert ended("whole") == ended("stopped")


def test_a_damaged_last_checkpoint_is_named_and_the_newest_whole_one_offered(data: Path, tmp_path: Path) -> None:
    command = ["amlp_fairseq.training.train", *words(data, "ibdecoder", tmp_path)]
    commands.run(*command)
    last = tmp_path / "checkpoint_last.pt"
    expected = parameters(tmp_path)
    whole = last.read_bytes()
    (newest,) = tmp_path.glob(f"checkpoint_*_{updates(tmp_path)}.pt")
    for damaged in (whole[: len(whole) // 2], b"", b"hello\n" * 100):
        last.write_bytes(damaged)
        refusal = commands.run(*command, check=False).splitlines()[-1]
        assert f"{last} is damaged or no checkpoint" in refusal
        assert f"--restore-file {newest} goes on" in refusal
    shutil.copy(newest, tmp_path / "kept.pt")
    commands.run(*command, "--restore-file", tmp_path / "kept.pt")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in parameters(tmp_path).items())


@pytest.mark.parametrize("row", ["ibdecoder", "transformer"])
def test_two_trainings_in_one_folder(row: str, data: Path, tmp_path: Path) -> None:
    """Of the plugin's models and of fairseq's."""
    command = ["amlp_fairseq.training.train", *words(data, row, tmp_path), "--max-update", "100000"]
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
