"""A checkpoint for fairseq's own models, which ``--finetune-from-model`` gives all of their parameters or none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import checkpoint_utils, options
from fairseq.tasks import setup_task

from amlp_fairseq.compat.internals import convert_namespace_to_omegaconf
from amlp_fairseq.compat.trainer import initialize
from amlp_fairseq.training.average import save

_ONE = threading.Lock()  # builds a model at a time: they draw from one generator


def write_fitted(words: Sequence[str], filename: Path, out: Path) -> None:
    """Write the parameters of another model with those that do not fit replaced by new ones, and a training time of 0.

    Args:
        words: the arguments of ``fairseq-train`` for the model.
        filename: the checkpoint of the other.
        out: the checkpoint to write.

    Raises:
        ValueError: if no parameter fits.
    """
    with _ONE, torch.random.fork_rng(devices=[]):
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), [*words]))
        torch.manual_seed(cfg.common.seed)
        model = setup_task(cfg.task).build_model(cfg.model)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(filename))
    initialize(model, state["model"], str(filename))
    extra = {**state["extra_state"], "previous_training_time": 0}  # fairseq goes on counting from it
    save({**state, "model": model.state_dict(), "extra_state": extra}, out)
