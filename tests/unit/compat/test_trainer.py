"""Options of trainings that would end after the first epoch, or that fairseq leaves out with a warning; a training that
diverges: one line and a mark in its folder, from which evaluate makes results."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import commands
import pytest
import torch
from fairseq import options
from fairseq import trainer as fairseq_trainer
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import progress_bar
from fairseq.trainer import Trainer

from amlp_fairseq.common.training_folder import diverged
from amlp_fairseq.training.results import read_results

BLEU = ["--best-checkpoint-metric", "bleu"]
TRANSLATION = ["--arch", "transformer", "--task", "translation"]
MASKED = ["--arch", "cmlm_transformer", "--task", "translation_lev"]
LANGUAGE_MODEL = ["--arch", "transformer_lm", "--task", "language_modeling"]


def begin(words: list[str]) -> None:
    """Make the trainer of a training with a model without parameters."""
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), ["data", *words]))
    model: Any = SimpleNamespace(named_parameters=list, children=list, to=lambda device: None)
    with (
        patch.object(fairseq_trainer, "_catalog_shared_params", lambda model: []),
        patch.object(Trainer, "cumulative_training_time", 0.0, create=True),
    ):
        Trainer(cfg, None, model, model)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*TRANSLATION, *BLEU], "--best-checkpoint-metric bleu needs --eval-bleu"),
        (
            ["--arch", "cmlmc_transformer", "--task", "translation_cmlmc", "--criterion", "nat_loss", *BLEU],
            "--best-checkpoint-metric bleu needs --eval-bleu",
        ),
        ([*MASKED, *BLEU, "--eval-bleu"], "bleu: --task translation_lev has no BLEU in validation"),
        ([*LANGUAGE_MODEL, *BLEU], "bleu: --task language_modeling has no BLEU in validation"),
        ([*TRANSLATION, *BLEU, "--eval-bleu"], ""),
        ([*TRANSLATION, *BLEU, "--disable-validation"], ""),
        ([*MASKED, "--eval-bleu"], ""),
        (LANGUAGE_MODEL, ""),
    ],
)
def test_bleu_that_validation_does_not_have(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) if message else nullcontext():
        begin(["--cpu", *words])


def test_fp16_without_a_gpu_by_fairseq_hydra_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainer says that parameters cannot be joined there."""
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *TRANSLATION, "--cpu", "--fp16"])
    cfg = convert_namespace_to_omegaconf(args)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute '_parameters'"):
        Trainer(cfg, None, None, None)
    assert cfg.common.fp16_no_flatten_grads


def test_tensorboard_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--cpu", *TRANSLATION, "--tensorboard-logdir", str(tmp_path)]
    monkeypatch.setattr(progress_bar, "SummaryWriter", object)
    begin(words)
    monkeypatch.setattr(progress_bar, "SummaryWriter", None)
    with pytest.raises(ValueError, match=rf"--tensorboard-logdir {tmp_path} needs tensorboardX"):
        begin(words)


@pytest.mark.slow
def test_a_training_that_diverges_is_a_result(tmp_path: Path) -> None:
    """Which a later training in its folder takes away."""
    for part in ("train", "valid", "test"):
        for language in ("en", "de"):
            (tmp_path / f"{part}.{language}").write_text("a b c\nb c\n" * 4, encoding="utf-8")
    data, save = tmp_path / "data", tmp_path / "save"
    prefixes = [f"--{part}pref={tmp_path / part}" for part in ("train", "valid", "test")]
    commands.run("fairseq_cli.preprocess", "-s", "en", "-t", "de", "--joined-dictionary", "--destdir", data, *prefixes)
    text = {"name": "n", "corpus": "", "languages": ["en", "de"], "post_process": None, "tokenizer": None}
    (data / "text.json").write_text(json.dumps(text | {"valid_set": "v", "test_set": "t"}), encoding="utf-8")
    words = ["train", data, "--row", "dynamicconv", "--scale", "embedded", "--save-dir", save, "--cpu"]
    words += ["--max-update", 5, "--warmup-updates", 1]
    printed = commands.run("amlp_fairseq.cli.main", *words, "--lr", "1e30", check=False)
    assert "Traceback" not in printed
    assert "diverged after" in printed.splitlines()[-1]
    updates = diverged(save)
    assert updates is not None
    assert updates >= 1
    commands.run("amlp_fairseq.evaluation.evaluate", save, data, "--cpu", "--subset", "valid,test")
    lines = read_results(save / "results.jsonl")
    assert [(line["split"], line["diverges"], line["updates"]) for line in lines] == [
        ("valid", True, updates),
        ("test", True, updates),
    ]
    (save / "checkpoint_last.pt").unlink(missing_ok=True)  # its weights are of no use any more
    commands.run("amlp_fairseq.cli.main", *words)
    assert diverged(save) is None
