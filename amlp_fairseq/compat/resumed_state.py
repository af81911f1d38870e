"""What a training needs to go on as if it had not been stopped, beside what fairseq keeps in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor

from amlp_fairseq.compat.guarded_tasks import is_guarded

#: In the optimizer's state: the parameters in float32 that ``--fp16`` and ``--bf16`` train, and what has been
#: counted for the scale of the loss.
PARAMETERS, LOSS_SCALE = "float32_parameters", "loss_scaler"
#: In the state that is not the model's: the best validation and how many were no better since, for ``--patience``.
PATIENCE = "early_stopping"


def with_all_state(state_dict: Any, self: Any) -> dict[str, Any]:
    """Keep all state in the checkpoints of guarded trainings, see :func:`is_guarded`. A checkpoint of fairseq has the
    parameters of the model alone, rounded to 16 bits."""
    state: dict[str, Any] = state_dict(self)
    if not is_guarded(self):
        return state
    if self.cfg.checkpoint.patience > 0:
        state["extra_state"][PATIENCE] = {**patience_state()}
    optimizer = self.optimizer
    if "last_optimizer_state" in state and type(optimizer) is FP16Optimizer and not self.is_fsdp:
        more: dict[str, Any] = {PARAMETERS: [parameter.data for parameter in _parameters(optimizer)]}
        if optimizer.scaler is not None:
            more[LOSS_SCALE] = {name: value for name, value in vars(optimizer.scaler).items() if name[0] == "_"}
        state["last_optimizer_state"] = state["last_optimizer_state"] | more
    return state


def restore_patience(load: Any, self: Any, filename: str, *args: Any, reset_meters: bool = False, **kwargs: Any) -> Any:
    """Take from a checkpoint how long ``--patience`` has waited."""
    extra_state = load(self, filename, *args, reset_meters=reset_meters, **kwargs)
    waited = None if reset_meters else (extra_state or {}).get(PATIENCE)
    if waited:
        patience_state().update(waited)
    return extra_state


def restore_optimizer(load_optimizer: Any, self: Any, state: dict[str, Any], optimizer_overrides: Any = None) -> None:
    """Take parameters and the loss scale from a checkpoint."""
    load_optimizer(self, state, optimizer_overrides)
    if PARAMETERS in state:
        _restore(_parameters(self), state[PARAMETERS], self.fp16_params[0].dtype)
    if LOSS_SCALE in state and self.scaler is not None:
        vars(self.scaler).update(state[LOSS_SCALE])


def patience_state() -> dict[str, Any]:
    """Where fairseq-train keeps the ``best`` validation and ``num_runs``, the number of those after it."""
    from fairseq_cli.train import should_stop_early

    return vars(should_stop_early)


def _parameters(optimizer: FP16Optimizer) -> list[Tensor]:
    """Those in float32: one by one, or all of a device in one tensor."""
    parameters = optimizer.fp32_params
    return [*parameters.values()] if isinstance(parameters, dict) else [*parameters]


@torch.no_grad()
def _restore(parameters: Sequence[Tensor], saved: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Copy what was saved, however it was joined, if it rounds to the model's parameters; they are others where a tool
    has changed the model in the checkpoint."""
    values, own = (torch.cat([tensor.flatten().cpu() for tensor in tensors]) for tensors in (saved, parameters))
    if values.shape != own.shape or not torch.equal(values.to(dtype).float(), own):
        return
    for parameter, value in zip(parameters, values.split([each.numel() for each in parameters]), strict=True):
        parameter.copy_(value.view_as(parameter))
