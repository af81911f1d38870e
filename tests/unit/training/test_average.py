"""amlp-fairseq average: the mean of the right files, as a checkpoint that loads, or an error that says why not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from fairseq import checkpoint_utils

from amlp_fairseq.training.average import average_checkpoints, main

OPTIMIZER = {"state": {0: {"exp_avg": torch.ones(3)}}}


def save(path: Path, weights: dict[str, torch.Tensor], **more: Any) -> Path:
    """A file with what fairseq's checkpoints hold beside the weights."""
    history = {"criterion_name": "C", "optimizer_name": "A", "lr_scheduler_state": {}, "num_updates": 7}
    state = {
        "args": None,
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": OPTIMIZER,
        **more,
    }
    torch.save({"model": weights, **state}, path)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["amlp-fairseq average", *map(str, arguments)])
    main()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1.2e-7), (torch.float16, 9.8e-4)], ids=["fp32", "fp16"]
)
def test_mean_of_three(dtype: torch.dtype, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to NumPy's mean in float64, to a rounding, and a model that loads."""
    task = toy.task()
    weights, paths = [], []
    for seed in range(3):
        model = toy.model(task, seed=seed)
        weights.append(model.to(dtype).state_dict())
        cfg = {"model": {**vars(model.cfg), "_name": "ibdecoder"}}
        paths.append(save(tmp_path / f"{seed}.pt", weights[-1], cfg=cfg, task_state=task.state_dict()))
    run(monkeypatch, "--inputs", *paths, "--output", tmp_path / "average.pt")

    stored = torch.load(tmp_path / "average.pt", weights_only=True)["model"]
    assert stored.keys() == weights[0].keys()
    (model,), _ = checkpoint_utils.load_model_ensemble([str(tmp_path / "average.pt")], task=task)
    loaded = model.state_dict()
    floating = [name for name, weight in weights[0].items() if weight.is_floating_point()]
    assert "decoder.layers.1.encoder_attn.q_proj.weight" in floating
    for name in floating:
        mean = np.mean([each[name].numpy().astype(np.float64) for each in weights], axis=0)
        assert stored[name].dtype == dtype
        np.testing.assert_allclose(stored[name].numpy(), mean, rtol=tolerance, atol=1e-7, err_msg=name)
        np.testing.assert_array_equal(loaded[name], stored[name].float(), err_msg=name)
    assert stored["decoder.interleaving"].tolist() == [2, 1, 0]


def test_integers_are_the_last_checkpoints(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.pt", {"w": torch.zeros(1), "count": torch.tensor([3 * i])}) for i in range(3)]
    count = average_checkpoints(paths)["model"]["count"]
    assert (count.dtype, count.tolist()) == (torch.int64, [6])


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(torch.float16, [60000.0, 60000.0, 30000.0]), (torch.float32, [2.0**24, 1.0, 1.0])],
    ids=["fp16 overflow", "fp32 rounding"],
)
def test_sums_are_taken_in_float64(dtype: torch.dtype, values: list[float], tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.pt", {"w": torch.tensor([v], dtype=dtype)}) for i, v in enumerate(values)]
    mean = average_checkpoints(paths)["model"]["w"]
    assert mean.dtype == dtype
    assert mean.item() == torch.tensor(np.mean(np.array(values)), dtype=dtype).item()


def test_everything_else_is_the_last_checkpoints(tmp_path: Path) -> None:
    """Integers are not averaged, the optimizer's state goes."""
    paths = [
        save(
            tmp_path / f"{i}.pt",
            {"w": torch.tensor([float(i)]), "count": torch.tensor([10 * i + 1]), "flag": torch.tensor(i == 2)},
            extra_state={"epoch": i},
        )
        for i in range(3)
    ]
    state = average_checkpoints(paths)
    assert state["model"]["w"].item() == 1
    assert state["model"]["count"].dtype == torch.int64
    assert state["model"]["count"].item() == 21
    assert state["model"]["flag"].item() is True
    assert state["extra_state"] == {"epoch": 2}
    assert state["optimizer_history"][-1]["num_updates"] == 7
    assert "last_optimizer_state" not in state


def test_one_checkpoint_is_its_own_average(tmp_path: Path) -> None:
    weights = toy.model(toy.task()).state_dict()
    average = average_checkpoints([save(tmp_path / "only.pt", weights)])
    torch.testing.assert_close(average["model"], dict(weights), rtol=0, atol=0)


@pytest.fixture
def epochs(tmp_path: Path) -> Path:
    """Epochs 8 to 11, whose weight is 2^epoch, and what else fairseq-train leaves in the folder."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for epoch in range(8, 12):
        save(folder / f"checkpoint{epoch}.pt", {"w": torch.tensor([2.0**epoch])}, extra_state={"epoch": epoch})
    for name in ("checkpoint_best", "checkpoint_last", "checkpoint_11_500", "checkpoint99_copy", "average"):
        save(folder / f"{name}.pt", {"w": torch.tensor([1e9])})
    return folder


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_last_epochs(count: int, epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number: checkpoint9.pt comes before checkpoint10.pt."""
    run(monkeypatch, "--inputs", epochs, "--last-epochs", count, "--output", tmp_path / "out.pt")
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    expected = [2.0**epoch for epoch in range(12 - count, 12)]
    assert state["model"]["w"].item() == pytest.approx(sum(expected) / count)
    assert state["extra_state"] == {"epoch": 11}


@pytest.mark.parametrize("count", [0, 5])
def test_last_epochs_that_do_not_exist(
    count: int, epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--inputs", epochs, "--last-epochs", count, "--output", tmp_path / "out.pt")
    assert (
        f"--last-epochs {count}: {epochs} has 4 such checkpoint(s); fairseq-train keeps them with --keep-last-epochs"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out.pt").exists()


def test_no_checkpoint_of_a_training_is_overwritten(
    epochs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last = epochs / "checkpoint8.pt"
    before = last.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--inputs", last, "--output", last)
    assert f"--output {last} is one of --inputs, and would lose its optimizer state" in capsys.readouterr().err
    assert last.read_bytes() == before


def test_last_epochs_needs_a_folder(
    epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--inputs", epochs / "checkpoint8.pt", "--last-epochs", 1, "--output", tmp_path / "out.pt")
    assert "--last-epochs needs --inputs to be one folder" in capsys.readouterr().err


def test_last_updates(epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of the update: that of an epoch begins anew."""
    for name, weight in (("10_1000", 3.0), ("9_900", 100.0), ("11_1100", 5.0)):
        save(epochs / f"checkpoint_{name}.pt", {"w": torch.tensor([weight])})
    run(monkeypatch, "--inputs", epochs, "--last-updates", 2, "--output", tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["model"]["w"].item() == 4


@pytest.mark.parametrize(
    ("metric", "highest", "expected"),
    [("bleu", True, (10 + 2) / 2), ("loss", False, 0.5), ("mae_loss", False, 0.5), ("ppl", True, (10 + 2) / 2)],
)
def test_best(
    metric: str, highest: bool, expected: float, epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the training found best, whatever the metric's name; weights are the metric's."""
    cfg = {"checkpoint": {"maximize_best_checkpoint_metric": highest}, "task": {"_name": "translation"}}
    for value in ("10.0007", "1.0003", "2.0001", "0.0005"):
        save(epochs / f"checkpoint.best_{metric}_{value}.pt", {"w": torch.tensor([float(value[:-4])])}, cfg=cfg)
    run(monkeypatch, "--inputs", epochs, "--best", 2, "--output", tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["model"]["w"].item() == pytest.approx(expected)


def test_best_by_two_metrics(epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for metric in ("bleu", "loss"):
        save(epochs / f"checkpoint.best_{metric}_2.0000.pt", {"w": torch.ones(1)})
    with pytest.raises(ValueError, match=f"{epochs} has best checkpoints by bleu and by loss"):
        run(monkeypatch, "--inputs", epochs, "--best", 1, "--output", tmp_path / "out.pt")


def test_missing_file(
    epochs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = epochs / "checkpoint7.pt"
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--inputs", epochs / "checkpoint8.pt", missing, "--output", tmp_path / "out.pt")
    assert f"{missing}: there is no such file" in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("content", [{"weights": {}}, [torch.ones(1)], torch.ones(1)], ids=["dict", "list", "tensor"])
def test_what_is_no_checkpoint(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt is not a checkpoint of fairseq: it has no 'model'$"):
        average_checkpoints([tmp_path / "other.pt"])


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"shared": torch.ones(2)}, r"other\.pt and \S+first\.pt do not have the same parameters: only_first$"),
        (
            {"shared": torch.ones(2), "only_first": torch.ones(2), "b": torch.ones(1), "a": torch.ones(1)},
            r"other\.pt and \S+first\.pt do not have the same parameters: a, b$",
        ),
        (
            {"shared": torch.ones(3), "only_first": torch.ones(2)},
            r"^shared has shape \(3,\) in \S+other\.pt and \(2,\) in \S+first\.pt$",
        ),
        (
            {"shared": torch.ones(1), "only_first": torch.ones(2)},  # would broadcast
            r"^shared has shape \(1,\) in \S+other\.pt and \(2,\) in \S+first\.pt$",
        ),
    ],
    ids=["missing", "additional", "other shape", "broadcastable shape"],
)
def test_different_parameters(other: dict[str, torch.Tensor], complaint: str, tmp_path: Path) -> None:
    first = save(tmp_path / "first.pt", {"shared": torch.ones(2), "only_first": torch.ones(2)})
    with pytest.raises(ValueError, match=complaint):
        average_checkpoints([first, save(tmp_path / "other.pt", other)])
