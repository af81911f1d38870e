"""Cache of inference models; rebuilt for every batch while a model can still be trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from fairseq.models import FairseqEncoderDecoderModel

from amlp_fairseq.common.host_memory import keep_freed_memory

Model = TypeVar("Model")


def are_frozen(models: Sequence[FairseqEncoderDecoderModel]) -> bool:
    """True if no model can be trained any more, as in fairseq-generate and fairseq-interactive."""
    return all(model._is_generation_fast for model in models)


class InferenceModelCache(Generic[Model]):
    """Returns the inference models of frozen models (``are_frozen``); makes them anew for other models, and for another
    device, type or other weights.

    Args:
        prepare: makes the inference model of a model.
    """

    def __init__(self, prepare: Callable[[FairseqEncoderDecoderModel], Model]) -> None:
        self.prepare = prepare
        self.key: list[_Key] = []
        self.inference_models: list[Model] = []

    def __call__(self, models: Sequence[FairseqEncoderDecoderModel]) -> list[Model]:
        if not are_frozen(models):
            return [self.prepare(model) for model in models]
        if (key := [_key(model) for model in models]) != self.key:
            keep_freed_memory()
            self.key, self.inference_models = key, [self.prepare(model) for model in models]
        return self.inference_models


_Key = tuple[FairseqEncoderDecoderModel, torch.device, torch.dtype, int | None]


def _key(model: FairseqEncoderDecoderModel) -> _Key:
    """The model, and values that ``to()`` and ``load_state_dict()`` change, read from one parameter."""
    parameter = next(model.parameters())
    version = None if parameter.is_inference() else parameter._version
    return model, parameter.device, parameter.dtype, version
