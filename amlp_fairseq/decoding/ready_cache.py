"""When models are made ready to translate: once, or again for every batch while they can be trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amlp_fairseq.common.host_memory import keep_freed_memory


def is_final(models: Sequence[Any]) -> bool:
    """Whether no model can be trained any more, as in fairseq-generate and fairseq-interactive."""
    return all(model._is_generation_fast for model in models)


class ReadyCache:
    """What ``make_ready`` makes of models, kept for as long as they are the same and final (``is_final``), and nobody
    has moved or converted them, or loaded other weights."""

    def __init__(self, make_ready: Callable[[Any], Any]) -> None:
        self.make_ready = make_ready
        self.kept: list[Any] = []
        self.ready: list[Any] = []

    def __call__(self, models: Sequence[Any]) -> list[Any]:
        if not is_final(models):
            return [self.make_ready(model) for model in models]
        if (present := [_state(model) for model in models]) != self.kept:
            keep_freed_memory()
            self.kept, self.ready = present, [self.make_ready(model) for model in models]
        return self.ready


def _state(model: Any) -> tuple[Any, ...]:
    """What ``to()`` or ``load_state_dict()`` changes, by one of the parameters."""
    parameter = next(model.parameters())
    version = None if parameter.is_inference() else parameter._version
    return model, parameter.device, parameter.dtype, version
