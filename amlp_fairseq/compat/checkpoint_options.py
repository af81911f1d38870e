"""Options that a checkpoint brings along: looked at before fairseq drops those that the model does not have
(``--model-overrides``) and builds it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, open_dict

from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY

#: Ends of the names of options that say how large a model is, and what is possible whatever its tensors: positions that
#: are not learned have none.
SIZES = {"_dim": 0, "_layers": 0, "_heads": 0, "_positions": 1 << 20}


def check_options(load: Any, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Refuse options that the plugin's model would ignore, and sizes that its tensors cannot have and that would take
    all memory."""
    state = load(path, *args, **kwargs)
    model = (state.get("cfg") or {}).get("model")
    overrides = args[0] if args else kwargs.get("arg_overrides")
    _add_overrides(model, MODEL_DATACLASS_REGISTRY.get(_model_name(model)), overrides)
    task = (state.get("cfg") or {}).get("task")
    _add_overrides(task, TASK_DATACLASS_REGISTRY.get(getattr(task, "_name", None)), overrides)
    _refuse_impossible_sizes(path, state.get("model"), state.get("args") or model)
    config = MODEL_DATACLASS_REGISTRY.get(_model_name(model), object)
    if hasattr(config, "refuse_unsupported"):
        config.refuse_unsupported(state.get("args") or model)  # old checkpoints have all of them in ``args`` alone
    return state


def _model_name(model: Any) -> str | None:
    """The registered name of the model with these options."""
    return ARCH_MODEL_NAME_REGISTRY.get(getattr(model, "_name", None))


def _add_overrides(section: Any, config: Any, overrides: Mapping[str, Any] | None) -> None:
    """Set the options that the model or the task has and the checkpoint does not, being older; fairseq passes over
    them."""
    if not isinstance(section, DictConfig):
        return
    for name, value in (overrides or {}).items():
        if name in getattr(config, "__dataclass_fields__", {}) and name not in section:
            with open_dict(section):
                section[name] = value


def _refuse_impossible_sizes(path: str, tensors: Any, options: Any) -> None:
    shapes = [value.shape for value in (tensors or {}).values() if isinstance(value, torch.Tensor)]
    largest = max((size for shape in shapes for size in shape), default=0)
    named = vars(options) if isinstance(options, argparse.Namespace) else options or {}
    for name, value in named.items():
        end = "".join(name.rpartition("_")[1:])
        if end in SIZES and largest and isinstance(value, int) and value > max(1000 * largest, SIZES[end]):
            raise ValueError(
                f"{path} is refused: it says {name} = {value}, and none of its tensors has more than {largest} entries "
                "in a dimension"
            )
