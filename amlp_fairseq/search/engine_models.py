"""A generator's model in the C++ engine, for fairseq's commands on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import torch
from fairseq.models import FairseqEncoderDecoderModel

from amlp_fairseq.decoding.inference_model_cache import InferenceModelCache
from amlp_fairseq.decoding.step_decoder import drops_out
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.model import EngineModel
from amlp_fairseq.models.description import describe

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=EngineModel)


class EngineModels(Generic[Model]):
    """The model of a generator in the engine, with copies of its present weights.

    Args:
        kind: ``engine.Model`` or ``engine.ParallelModel``.
        use_engine: False: PyTorch decodes.
        work: what it does, for the log.
    """

    def __init__(self, kind: type[Model], use_engine: bool, work: str = "decodes") -> None:
        self.kind, self.use_engine, self.work = kind, use_engine, work
        self.decode_dtype: str | None = None
        self.max_positions: int | None = None
        self.models: InferenceModelCache[Model] = InferenceModelCache(self._prepare)
        self.ensemble: tuple[list[Model], Model] | None = None
        self.reported = ""

    def __call__(
        self,
        models: Sequence[FairseqEncoderDecoderModel],
        decode_dtype: str | None,
        unsupported: Mapping[str, bool] = MappingProxyType({}),
        max_positions: int | None = None,
        check: Callable[[Model], None] = lambda model: None,
    ) -> Model | None:
        """The model in the engine; None if PyTorch decodes, which is logged once with the reason.

        Args:
            models: of the generator.
            decode_dtype: one of ``engine.DECODE_DTYPES``; None: float32.
            unsupported: options that the engine does not have, each with True if it is given.
            max_positions: of the decoder; None: the model's.
            check: raises UnsupportedError, naming it, for what the engine does not have for this model.
        """
        self.decode_dtype, self.max_positions = decode_dtype, max_positions
        reason = ""
        if self.use_engine:
            try:
                _check(models, unsupported)
                model = self._as_one(self.models(models))
                check(model)
                return model
            except UnsupportedError as error:
                reason = f"the engine does not have {error}"
            except ImportError as error:
                reason = str(error)
        if reason and reason != self.reported and next(models[0].parameters()).device.type == "cpu":
            logger.info("PyTorch %s: %s", self.work, reason)
        self.reported = reason
        return None

    def _as_one(self, models: list[Model]) -> Model:
        if len(models) == 1:
            return models[0]
        if self.ensemble is None or self.ensemble[0] is not models:
            self.ensemble = models, self.kind.ensemble(models)
        return self.ensemble[1]

    def _prepare(self, model: FairseqEncoderDecoderModel) -> Model:
        description = describe(model)
        if self.max_positions is not None:
            description["decoder"]["max_positions"] = self.max_positions
        weights = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
        return self.kind(description, weights, self.decode_dtype or "float32")


def _check(models: Sequence[FairseqEncoderDecoderModel], unsupported: Mapping[str, bool]) -> None:
    """Raise UnsupportedError, naming it, for what the engine does not have."""
    for model in models:
        parameter = next(model.parameters())
        for option, is_given in {
            f"the device {parameter.device}": parameter.device.type != "cpu",
            "--retain-dropout": drops_out(model),
            **unsupported,
            f"weights in {parameter.dtype}": parameter.dtype != torch.float32,
        }.items():
            if is_given:
                raise UnsupportedError(option)
