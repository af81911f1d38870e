"""When models are made ready to translate: once, or again for every batch while they can be trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amlp_fairseq.decoding.host_memory import keep_freed_memory


def is_final(models: Sequence[Any]) -> bool:
    """Whether no model can be trained any more, as in fairseq-generate and fairseq-interactive."""
    return all(model._is_generation_fast for model in models)


class ReadyCache:
    """What ``make_ready`` makes of models, kept for as long as they are the same and final (``is_final``)."""

    def __init__(self, make_ready: Callable[[Any], Any]) -> None:
        self.make_ready = make_ready
        self.models: list[Any] = []
        self.ready: list[Any] = []

    def __call__(self, models: Sequence[Any]) -> list[Any]:
        if not is_final(models):
            return [self.make_ready(model) for model in models]
        if list(models) != self.models:
            keep_freed_memory()
            self.models, self.ready = list(models), [self.make_ready(model) for model in models]
        return self.ready
