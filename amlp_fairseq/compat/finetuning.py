"""``--finetune-from-model`` with a checkpoint of another model: what fits is taken."""

from __future__ import annotations

import logging
from typing import Any

import torch
from fairseq import checkpoint_utils

from amlp_fairseq.compat.registration import is_ours

logger = logging.getLogger(__name__)


def begin_with_what_fits(load: Any, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Begin the training of a model of the plugin with those parameters of ``--finetune-from-model`` that it has, too;
    fairseq wants all of them to be the same."""
    model = self.get_model()
    if is_ours(type(model)) and filename == self.cfg.checkpoint.finetune_from_model:
        initialize(model, checkpoint_utils.load_checkpoint_to_cpu(filename)["model"], filename)
        return None
    return load(self, filename, *args, **kwargs)


@torch.no_grad()
def initialize(model: Any, weights: dict[str, torch.Tensor], filename: str) -> None:
    """Copy the tensors that have the name and shape of one of the model's parameters, and log the parts that have none.

    Args:
        model: changed in place.
        weights: of another model, by name; those that a model of the plugin renames when it loads them have their new
            names here, too.
        filename: theirs.

    Raises:
        ValueError: if none has.
    """
    weights = {**weights, **dict(model.named_buffers())}  # which no other model's may contradict
    model.upgrade_state_dict(weights)
    new: set[str] = set()
    taken = 0
    for name, parameter in model.named_parameters():
        given = weights.get(name)
        if given is not None and given.shape == parameter.shape:
            parameter.copy_(given)
            taken += 1
        else:
            new.add(".".join(name.split(".")[:-1]))
    if not taken:
        raise ValueError(f"--finetune-from-model {filename}: no parameter has a name and shape of this model's")
    logger.info(f"{taken} parameters are those of {filename}; new: {', '.join(sorted(new)) or 'none'}")
