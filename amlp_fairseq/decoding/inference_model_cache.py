"""Cache of inference models, which are rebuilt for every batch while a model can still be trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amlp_fairseq.common.host_memory import keep_freed_memory


def are_frozen(models: Sequence[Any]) -> bool:
    """True if no model can be trained any more, as in fairseq-generate and fairseq-interactive."""
    return all(model._is_generation_fast for model in models)


class InferenceModelCache:
    """The results of ``prepare`` for the last models, returned again while they are the same, frozen (``are_frozen``),
    on the same device, of the same type and with the same weights.

    Args:
        prepare: makes the inference model of a model.
    """

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        self.prepare = prepare
        self.kept: list[Any] = []
        self.ready: list[Any] = []

    def __call__(self, models: Sequence[Any]) -> list[Any]:
        if not are_frozen(models):
            return [self.prepare(model) for model in models]
        if (present := [_state(model) for model in models]) != self.kept:
            keep_freed_memory()
            self.kept, self.ready = present, [self.prepare(model) for model in models]
        return self.ready


def _state(model: Any) -> tuple[Any, ...]:
    """Values that ``to()`` and ``load_state_dict()`` change, read from one parameter."""
    parameter = next(model.parameters())
    version = None if parameter.is_inference() else parameter._version
    return model, parameter.device, parameter.dtype, version
