"""Auxiliary models of decoding: they draft, or rerank hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig

from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from amlp_fairseq.model_folder.config import DISABLED

#: Overrides for auxiliary models, which use no others even if their folders name some.
NO_AUXILIARY_MODELS = dict.fromkeys(DISABLED)


def load_auxiliary_model(
    option: str, path: str, cfg: TranslationConfig, main_model: FairseqEncoderDecoderModel, task: FairseqTask = None
) -> tuple[FairseqTask, FairseqEncoderDecoderModel]:
    """The task and the model of a checkpoint or model folder, on the device and in the type of the main model.

    Args:
        option: the option with the path.
        path: checkpoint or model folder.
        cfg: config of the task that decodes.
        main_model: the model of the task that decodes.
        task: loads the model; by default the model's own task.

    Raises:
        ValueError: for an unreadable path, and for other dictionaries.
    """
    overrides = {"data": cfg.data, "decode_dtype": cfg.decode_dtype, **NO_AUXILIARY_MODELS}
    try:
        models, saved_cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            utils.split_paths(path), arg_overrides=overrides, task=task
        )
        if len(models) > 1:
            raise ValueError("one model is needed, not several")
        for side in ("source", "target"):  # a model folder has its dictionaries, checkpoints may have fingerprints
            file = Path(path, f"dict.{getattr(cfg, f'{side}_lang')}.txt")
            if file.is_file() and Dictionary.load(str(file)).symbols != getattr(task, f"{side}_dictionary").symbols:
                raise ValueError(f"its {side} dictionary is not that of the model that decodes")
    except (OSError, ValueError) as error:
        raise ValueError(f"{option} {path}: {error}") from None
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        raise ValueError(f"{option} {path}: its parameters do not fit the dictionaries of {cfg.data}") from error
    (model,), parameter = models, next(main_model.parameters())
    model.prepare_for_inference_(saved_cfg)
    model.to(device=parameter.device, dtype=parameter.dtype)
    return task, model


def load_reranking_model(
    task: FairseqTask, models: Sequence[FairseqEncoderDecoderModel]
) -> FairseqEncoderDecoderModel | None:
    """The autoregressive model of ``--rescore-path`` for a task's models; None without the option.

    Raises:
        ValueError: as :func:`load_auxiliary_model`, and for a model that is not autoregressive.
    """
    cfg, name = task.cfg, "translation_interleaved"
    if cfg.rescore_path is None:
        return None
    left_to_right = TASK_DATACLASS_REGISTRY[name](data=cfg.data, num_directions=1, words_per_direction=1)
    loader = TASK_REGISTRY[name](left_to_right, task.source_dictionary, task.target_dictionary)
    try:
        return load_auxiliary_model("--rescore-path", cfg.rescore_path, cfg, models[0], loader)[1]
    except ValueError as error:
        raise ValueError(f"{error} (an autoregressive model with the same dictionaries is needed)") from None
