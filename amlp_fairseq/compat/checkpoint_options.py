"""Options of a checkpoint that is loaded as another model (``--model-overrides``): looked at before fairseq drops those
that this model does not have."""

from __future__ import annotations

import functools
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY


def install() -> None:
    """Let ``checkpoint_utils.load_checkpoint_to_cpu`` refuse options that the plugin's model would ignore."""
    load = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(load)
    def load_checkpoint_to_cpu(*args: Any, **kwargs: Any) -> dict[str, Any]:
        state = load(*args, **kwargs)
        model = (state.get("cfg") or {}).get("model")
        config = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(getattr(model, "_name", None)), object)
        if hasattr(config, "refuse_unsupported"):
            config.refuse_unsupported(state.get("args") or model)  # old checkpoints have all of them in ``args`` alone
        return state

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
