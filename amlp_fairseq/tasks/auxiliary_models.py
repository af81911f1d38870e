"""Models that help another one to decode: they draft for it, or choose among its hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary

from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

#: What turns off the help that a model folder asks for, by option.
HELP_OFF = {"rescore_path": "", "draft_path": "", "draft_file": "", "draft": "none"}
#: A helper has no helpers, even if its folder names some.
NO_HELP = dict.fromkeys(HELP_OFF)


def load_helper(option: str, path: str, cfg: Any, helped: Any, task: Any = None) -> tuple[Any, Any]:
    """The task and the model of a checkpoint or model folder, on the device and in the type of the one that is helped.

    Args:
        option: that gives the path.
        path: of the checkpoint or the folder.
        cfg: the config of the task that decodes.
        helped: the model.
        task: that is to load it; by default its own.

    Raises:
        ValueError: for what cannot be read, and for other dictionaries.
    """
    overrides = {"data": cfg.data, "decode_dtype": cfg.decode_dtype, **NO_HELP}
    try:
        (model, *others), saved, task = checkpoint_utils.load_model_ensemble_and_task(
            utils.split_paths(path), arg_overrides=overrides, task=task
        )
        if others:
            raise ValueError("one model is needed, not several")
        for side in ("source", "target"):  # a model folder has its dictionaries, checkpoints may have fingerprints
            own = Path(path, f"dict.{getattr(cfg, f'{side}_lang')}.txt")
            if own.is_file() and Dictionary.load(str(own)).symbols != getattr(task, f"{side}_dictionary").symbols:
                raise ValueError(f"its {side} dictionary is not that of the model that it is to help")
    except (OSError, ValueError) as error:
        raise ValueError(f"{option} {path}: {error}") from None
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        raise ValueError(f"{option} {path}: its parameters do not fit the dictionaries of {cfg.data}") from error
    parameter = next(helped.parameters())
    model.prepare_for_inference_(saved)
    model.to(device=parameter.device, dtype=parameter.dtype)
    return task, model


def load_reranking_model(task: Any, models: Sequence[Any]) -> Any:
    """The autoregressive model of ``--rescore-path`` for a task's models; None without the option.

    Raises:
        ValueError: as :func:`load_helper`, and for a model that is not autoregressive.
    """
    cfg, name = task.cfg, "translation_interleaved"
    if cfg.rescore_path is None:
        return None
    left_to_right = TASK_DATACLASS_REGISTRY[name](data=cfg.data, num_directions=1, words_per_direction=1)
    loader = TASK_REGISTRY[name](left_to_right, task.source_dictionary, task.target_dictionary)
    try:
        return load_helper("--rescore-path", cfg.rescore_path, cfg, models[0], loader)[1]
    except ValueError as error:
        raise ValueError(f"{error} (an autoregressive model with the same dictionaries is needed)") from None
