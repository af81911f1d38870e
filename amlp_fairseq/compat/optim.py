"""Changes of ``fairseq.optim``: trainings with ``--fp16`` and ``--bf16`` that are resumed, and those without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor

from amlp_fairseq.compat.changes import Stock

#: In the optimizer's state: the parameters in float32 that ``--fp16`` and ``--bf16`` train, and what has been
#: counted for the scale of the loss.
PARAMETERS, LOSS_SCALE = "float32_parameters", "loss_scaler"


def float32_state(optimizer: Any) -> dict[str, Any]:
    """The part of an optimizer's state that fairseq does not keep; nothing where all is in float32."""
    if type(optimizer) is not FP16Optimizer:
        return {}
    state: dict[str, Any] = {PARAMETERS: [parameter.data for parameter in _parameters(optimizer)]}
    if optimizer.scaler is not None:
        state[LOSS_SCALE] = {name: value for name, value in vars(optimizer.scaler).items() if name[0] == "_"}
    return state


def load_state_dict(stock: Stock, self: Any, state: dict[str, Any], optimizer_overrides: Any = None) -> None:
    """Take parameters and the loss scale from a checkpoint (of ``FP16Optimizer``)."""
    stock(self, state, optimizer_overrides)
    if PARAMETERS in state:
        _restore(_parameters(self), state[PARAMETERS], self.fp16_params[0].dtype)
    if LOSS_SCALE in state and self.scaler is not None:
        vars(self.scaler).update(state[LOSS_SCALE])


def check_overflow(stock: Stock, self: Any, grad_norm: Any) -> None:
    """Raise ValueError where gradients overflow and there is no GPU, without which fairseq cannot go on (of
    ``DynamicLossScaler``)."""
    scale = self.loss_scale
    try:
        stock(self, grad_norm)
    except OverflowError as error:
        if torch.cuda.is_available():
            raise
        raise ValueError(
            f"--fp16: gradients overflow with a loss scale of {scale:g}, and fairseq goes on from there only on a "
            "GPU: give --bf16, or a smaller --fp16-init-scale"
        ) from error


def _parameters(optimizer: FP16Optimizer) -> list[Tensor]:
    """The parameters in float32: one by one, or all of a device in one tensor."""
    parameters = optimizer.fp32_params
    return [*parameters.values()] if isinstance(parameters, dict) else [*parameters]


@torch.no_grad()
def _restore(parameters: Sequence[Tensor], saved: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Copy what was saved, however it was joined, if it rounds to the model's parameters: not where another tool has
    changed the model in the checkpoint."""
    values, own = (torch.cat([tensor.flatten().cpu() for tensor in tensors]) for tensors in (saved, parameters))
    if values.shape != own.shape or not torch.equal(values.to(dtype).float(), own):
        return
    for parameter, value in zip(parameters, values.split([each.numel() for each in parameters]), strict=True):
        parameter.copy_(value.view_as(parameter))
