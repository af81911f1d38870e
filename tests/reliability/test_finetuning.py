"""Trainings that begin with what fits of another model."""

from __future__ import annotations

from pathlib import Path

import commands
import pytest
import torch
from small_systems import TINY

from amlp_fairseq.training.config import load
from amlp_fairseq.training.train import command
from amlp_fairseq.training.warm_start import write_fitted


def train(data: Path, save_dir: Path, row: str, *options: object, check: bool = True) -> str:
    words = [data, "--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY, "--save-dir", save_dir, *options]
    return commands.run("amlp_fairseq.cli.main", "train", *words, check=check)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"])


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    train(data, folder, "transformer")
    return folder


@pytest.mark.parametrize("row", ["ibdecoder_student", "cmlmc_abc"])
def test_what_fits_is_taken(row: str, data: Path, teacher: Path, tmp_path: Path) -> None:
    checkpoint = teacher / "checkpoint_last.pt"
    begin = ["--finetune-from-model", checkpoint]
    log = train(data, tmp_path / "new", row, *begin)
    assert f" parameters are those of {checkpoint}; new: " in log
    theirs, own = weights(teacher), weights(tmp_path / "new")
    fitting = {name for name in own.keys() & theirs.keys() if own[name].shape == theirs[name].shape}
    train(data, tmp_path / "scratch", row, "--seed", 2)
    scratch = weights(tmp_path / "scratch")
    near = [name for name in fitting if name.endswith(("q_proj.weight", "fc1.weight"))]
    assert {name.split(".")[0] for name in near} == {"encoder", "decoder"}
    for name in near:  # trained for two updates only, so still near
        assert not torch.equal(own[name], theirs[name])
        assert (own[name] - theirs[name]).norm() < (scratch[name] - theirs[name]).norm() / 2


def test_a_resumed_training_goes_on_with_its_own(data: Path, teacher: Path, tmp_path: Path) -> None:
    begin = ["--finetune-from-model", teacher / "checkpoint_last.pt"]
    train(data, tmp_path, "ibdecoder_student", *begin, "--max-update", 1)
    log = train(data, tmp_path, "ibdecoder_student", *begin, "--max-update", 2)
    assert "parameters are those of" not in log
    assert "Loaded checkpoint" in log


def test_fairseqs_own_model_begins_with_what_fits(data: Path, teacher: Path, tmp_path: Path) -> None:
    sizes = [*TINY, "--encoder-layers", "3"]
    recipe = load("transformer_student", "embedded", "embedded")
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        words = command(recipe, data, tmp_path, [*sizes, "--seed", seed], {})
        write_fitted(words, teacher / "checkpoint_last.pt", tmp_path / name)
    theirs = weights(teacher)
    a, b, c = (torch.load(tmp_path / name, weights_only=False)["model"] for name in "abc")
    fitting = {name for name in a if name in theirs}
    new = {name for name in a if name.startswith("encoder.layers.2.")}
    assert new
    assert a.keys() == fitting | new
    for name in fitting:
        assert torch.equal(a[name], theirs[name])
    for name in new:
        assert torch.equal(a[name], b[name])
    assert any(not torch.equal(a[name], c[name]) for name in new)
    begin = ["--finetune-from-model", tmp_path / "a", "--encoder-layers", "3", "--lr", "1e-9"]
    train(data, tmp_path / "begun", "transformer_student", *begin)
    own = weights(tmp_path / "begun")
    for name in a:
        assert torch.allclose(own[name], a[name], atol=1e-6)


def test_the_training_time_is_not_that_of_the_teacher_too(data: Path, teacher: Path, tmp_path: Path) -> None:
    state = torch.load(teacher / "checkpoint_last.pt", weights_only=False)
    state["extra_state"]["previous_training_time"] = 1e6
    torch.save(state, tmp_path / "old")
    words = command(load("transformer_student", "embedded", "embedded"), data, tmp_path, [*TINY], {})
    write_fitted(words, tmp_path / "old", tmp_path / "begin")
    train(data, tmp_path / "begun", "transformer_student", "--finetune-from-model", tmp_path / "begin")
    begun = torch.load(tmp_path / "begun" / "checkpoint_last.pt", weights_only=False)
    assert 0 < begun["extra_state"]["previous_training_time"] < 1e6


@pytest.mark.parametrize("row", ["transformer", "ibdecoder"])
def test_the_folder_of_a_model_is_a_beginning(row: str, data: Path, teacher: Path, tmp_path: Path) -> None:
    """Also for fairseq's own model: fairseq passes over what is no file, and would begin with random parameters."""
    commands.run("amlp_fairseq.cli.main", "package", teacher / "checkpoint_last.pt", "--out", tmp_path / "model")
    train(data, tmp_path / "begun", row, "--finetune-from-model", tmp_path / "model", "--lr", "1e-9")
    theirs, own = weights(teacher), weights(tmp_path / "begun")
    names = [name for name in own if name in theirs and own[name].dim() == 2]
    assert len(names) > 20
    for name in names:
        assert torch.allclose(own[name], theirs[name], atol=1e-6), name


def test_what_does_not_fit_at_all_is_named(data: Path, teacher: Path, tmp_path: Path) -> None:
    sizes = [f"--{side}-embed-dim=8" for side in ("encoder", "decoder")]
    ffn = [f"--{side}-ffn-embed-dim=24" for side in ("encoder", "decoder")]
    options = ["--finetune-from-model", teacher / "checkpoint_last.pt", *sizes, *ffn]
    log = train(data, tmp_path, "ibdecoder_student", *options, check=False)
    assert "no parameter has a name and shape of this model's" in log.splitlines()[-1]
    assert "Traceback" not in log
