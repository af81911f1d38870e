"""SIGKILL at random moments of average, distill and evaluate: the same command then makes what it always makes.

tests/unit/training/test_distill.py has the bounded version for distill.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
import yaml
from small_systems import System, evaluable

from amlp_fairseq.common.training_folder import RECIPE
from amlp_fairseq.training.config import load, read, save

CLI = "amlp_fairseq.cli.main"
#: What differs between two evaluations of the same model.
TIMES = ("milliseconds_per_sentence", "seconds", "sentences_per_second", "date", "commit")


class Killer:
    """Starts a command as often as it is told, and kills it and its programs at random moments."""

    def __init__(self, *words: object) -> None:
        self.words, self.rng, self.seconds = words, random.Random(str(words[0])), 0.0

    def run(self) -> None:
        """Undisturbed; how long this takes is when it may be killed."""
        begin = time.monotonic()
        commands.run(CLI, *self.words)
        self.seconds = time.monotonic() - begin

    def kill(self, written: Path | None = None) -> None:
        """Start the command and kill it: when a file is there, or at a random moment."""
        child = commands.start(CLI, *self.words, own_session=True)
        try:
            if written is None:
                child.join(self.rng.uniform(0, self.seconds))
            while written is not None and child.is_alive() and not written.exists():
                time.sleep(0.0005)
        finally:
            commands.kill_session(child)


def test_a_recipe_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """So that a training that is killed leaves the one before or the new one."""
    path = tmp_path / RECIPE
    recipe = load("ibdecoder", "embedded", "embedded")
    save(recipe, path)
    before = path.read_text(encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        save(replace(recipe, changes="--lr 1"), path)
        assert file.read() == before
    assert read(path) == replace(recipe, changes="--lr 1")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.long)], ids=["bounded", "long"])
def test_average(kills: int, system: Callable[[str], System], tmp_path: Path) -> None:
    """While it reads, and while it writes; half a file is refused by name."""
    state = torch.load(system("ibdecoder").checkpoint, weights_only=False)
    state["model"]["large"] = torch.rand(1 << 20)  # so that writing takes a while
    for number in (1, 2, 3):
        state["model"] = {name: weight * number / 2 for name, weight in state["model"].items()}
        torch.save(state, tmp_path / f"checkpoint{number}.pt")
    output = tmp_path / "average.pt"
    average = Killer("average", "--inputs", tmp_path, "--last-epochs", "3", "--output", output)
    average.run()
    expected = torch.load(output, weights_only=False)["model"]
    for part in range(kills):
        if part % 2 == 0:
            output.unlink(missing_ok=True)
        average.kill(written=output if part % 2 == 0 else None)
    average.run()
    found = torch.load(output, weights_only=False)["model"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.long
def test_distill(system: Callable[[str], System], data: Path, tmp_path: Path) -> None:
    teacher = system("aan")
    options = ["--cpu", "--max-len-b", "8", "--max-tokens", "100", "--shards", "3", "--max-ratio", "9"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    undisturbed = Killer("distill", teacher.checkpoint, data, whole, *options)
    undisturbed.run()
    distill = Killer("distill", teacher.checkpoint, data, out, *options)
    distill.seconds = undisturbed.seconds / 2  # or nothing would be left for the later ones
    kills = 0
    while kills < 25 and not out.exists():
        distill.kill()
        kills += 1
    if not out.exists():
        distill.run()
    names = sorted(path.name for path in whole.iterdir() if path.is_file())
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == names
    assert {"train.en-de.de.bin", "manifest.json"} < set(names)
    for name in names:
        if name != "manifest.json":
            assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    manifests = [json.loads((folder / "manifest.json").read_text(encoding="utf-8")) for folder in (whole, out)]
    assert manifests[0]["sha256"] == manifests[1]["sha256"]


@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.long)], ids=["bounded", "long"])
def test_evaluate(kills: int, system: Callable[[str], System], data: Path, tmp_path: Path) -> None:
    """A killed evaluation has added its results or it has not; the next one adds them once."""
    folder, prepared = evaluable(system("ibdecoder"), data, tmp_path)
    recipe = yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8"))
    recipe["generate"].pop("beam 4")
    (folder / RECIPE).write_text(yaml.safe_dump(recipe), encoding="utf-8")
    results = folder / "results.jsonl"
    evaluate = Killer("evaluate", folder, prepared, "--cpu", "--max-len-b", "9")

    def added(since: int) -> list[dict[str, Any]]:
        lines = results.read_text(encoding="utf-8").splitlines()[since:]
        return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]

    def outputs() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.glob("*.hyp")}

    evaluate.run()
    expected, texts, count = added(0), outputs(), len(added(0))
    assert count == len(texts) == 1
    for _ in range(kills):
        before = len(added(0))
        evaluate.kill()
        assert added(before) in ([], expected)
    before = len(added(0))
    evaluate.run()
    assert added(before) == expected
    assert outputs() == texts
