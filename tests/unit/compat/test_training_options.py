"""Options of trainings that would end after the first epoch, or that fairseq leaves out with a warning."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import progress_bar
from fairseq.trainer import Trainer

BLEU = ["--best-checkpoint-metric", "bleu"]
TRANSLATION = ["--arch", "transformer", "--task", "translation"]
MASKED = ["--arch", "cmlm_transformer", "--task", "translation_lev"]
LANGUAGE_MODEL = ["--arch", "transformer_lm", "--task", "language_modeling"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*TRANSLATION, *BLEU], "--best-checkpoint-metric bleu needs --eval-bleu"),
        (
            ["--arch", "cmlmc_transformer", "--task", "translation_cmlmc", *BLEU],
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
    parser = options.get_training_parser()
    if not message:
        options.parse_args_and_arch(parser, ["data", *words])
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        options.parse_args_and_arch(parser, ["data", *words])


def test_fairseq_hydra_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no command line: its trainer looks."""
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *TRANSLATION, "--cpu"])
    args.best_checkpoint_metric = "bleu"
    cfg = convert_namespace_to_omegaconf(args)
    model = SimpleNamespace(named_parameters=list, children=list, to=lambda device: None)
    monkeypatch.setattr("fairseq.trainer._catalog_shared_params", lambda model: [])
    monkeypatch.setattr("fairseq.trainer.Trainer.cumulative_training_time", 0.0, raising=False)
    with pytest.raises(ValueError, match="bleu needs --eval-bleu"):
        Trainer(cfg, None, model, model)


def test_fp16_without_a_gpu_by_fairseq_hydra_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainer says that parameters cannot be joined there."""
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *TRANSLATION, "--cpu", "--fp16"])
    cfg = convert_namespace_to_omegaconf(args)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute '_parameters'"):
        Trainer(cfg, None, None, None)
    assert cfg.common.fp16_no_flatten_grads


def test_tensorboard_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["data", *TRANSLATION, "--tensorboard-logdir", str(tmp_path)]
    monkeypatch.setattr(progress_bar, "SummaryWriter", object)
    options.parse_args_and_arch(options.get_training_parser(), words)
    monkeypatch.setattr(progress_bar, "SummaryWriter", None)
    message = f'--tensorboard-logdir {tmp_path} needs tensorboardX, which is not installed: pip install "amlp-fairseq['
    with pytest.raises(ValueError, match=re.escape(message)):
        options.parse_args_and_arch(options.get_training_parser(), words)
