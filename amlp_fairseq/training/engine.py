"""The search that decodes a model: the plugin's, or fairseq's own where it is asked for.

Of an autoregressive Transformer both write the same words in as many decoder calls, the plugin's in a fraction of the
time: how long one model takes with one and another model with the other says nothing of the models.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.nat import FairseqNATModel
from fairseq.models.transformer import TransformerModelBase
from omegaconf import DictConfig

from amlp_fairseq.common.arguments import flags_of, split_options
from amlp_fairseq.compat.internals import ARCH_MODEL_REGISTRY, TASK_REGISTRY, GenerationConfig
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.tasks.translation_interleaved import (
    FAIRSEQS_OPTIONS,
    TranslationInterleavedConfig,
    TranslationInterleavedTask,
)
from amlp_fairseq.training.config import PAPER, load, names

ENGINES = OURS, FAIRSEQS = ("amlp-fairseq", "fairseq")
#: The tasks with which they decode an autoregressive Transformer.
TASK, FAIRSEQS_TASK = "translation_interleaved", "translation"
#: Options of the plugin's task that say how a model writes, and how its outputs are scored.
MODEL_OPTIONS = (
    *("num_directions", "words_per_direction", "middle_to_side"),
    *("length_penalty", "words_after_end", "deduplicate_ngrams"),
)


def engine_argument(parser: argparse.ArgumentParser) -> None:
    """``--engine``."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=OURS,
        help="fairseq: decode autoregressive models with fairseq's own search, which is slower (default: %(default)s)",
    )


def is_autoregressive_transformer(kind: type) -> bool:
    """True for a class of models that both engines decode."""
    return issubclass(kind, TransformerModelBase) and not issubclass(kind, FairseqNATModel)


def task_flags(task: Mapping[str, Any], arch: str, engine: str) -> dict[str, Any]:
    """Flags of the task that decodes a model.

    Args:
        task: the flags of its training's task, ``{"task": "translation"}``, which all but the name are kept.
        arch: its architecture.
        engine: of ``ENGINES``.

    Raises:
        ValueError: if fairseq's search cannot decode it.
    """
    transformer = is_autoregressive_transformer(ARCH_MODEL_REGISTRY.get(arch, object))
    if engine == OURS and task["task"] == FAIRSEQS_TASK and transformer:
        return {**task, "task": TASK, "num-directions": 1}
    if engine == FAIRSEQS and task == {**task, "task": TASK, "num-directions": 1} and transformer:
        own = {option.replace("_", "-") for option in MODEL_OPTIONS}
        if own & task.keys() == {"num-directions"}:
            return {**{flag: value for flag, value in task.items() if flag not in own}, "task": FAIRSEQS_TASK}
    if engine == FAIRSEQS and task["task"] != FAIRSEQS_TASK:
        raise ValueError(f"--engine {engine}: fairseq's search does not decode a model of --task {task['task']}")
    return dict(task)


def engine_of_task(task: str) -> str:
    """The engine of fairseq-generate under a task."""
    return OURS if is_ours(TASK_REGISTRY.get(task, object)) else FAIRSEQS


def given_task(words: Sequence[str]) -> str | None:
    """The value of ``--task`` on a command line."""
    task: str | None = split_options(words, ["--task"])[0].task
    return task


def saved_cfg(path: Path) -> Any:
    """The options of a checkpoint, or of the folder of a model."""
    return checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"]


def section_of(cfg: DictConfig, name: str) -> Mapping[str, Any]:
    """The options of a section of a checkpoint's, which is a Namespace where the class has no dataclass."""
    section = cfg[name]
    return vars(section) if isinstance(section, argparse.Namespace) else section  # type: ignore[no-any-return]


def task_of(cfg: DictConfig) -> dict[str, Any]:
    """The flags of the task of a checkpoint with these options."""
    task = section_of(cfg, "task")
    flags = {"task": task["_name"]}
    if task["_name"] == TASK:
        for option in MODEL_OPTIONS:
            value = task.get(option)
            if value not in (None, getattr(TranslationInterleavedConfig, option)):
                flags[option.replace("_", "-")] = value
    return flags


def check_options(words: Sequence[str], task: str) -> None:
    """Refuse options of a command line that only fairseq's search has, where the plugin's decodes under a task.

    Raises:
        ValueError: naming them and the way out.
    """
    own = TranslationInterleavedTask.HONOURED_GENERATION_OPTIONS - FAIRSEQS_OPTIONS
    others = GenerationConfig.__dataclass_fields__.keys() - own
    flags = [flag for flag in flags_of(words) if flag.removeprefix("--").replace("-", "_") in others]
    if flags and task == TASK:
        raise ValueError(f"{', '.join(flags)}: only fairseq's own search has it (--engine {FAIRSEQS})")


def engine_of(line: Mapping[str, Any]) -> str:
    """The engine of a result. Old ones do not say it: that of their options or of their row; "not stated" if neither
    says it."""
    if line.get("engine"):
        return str(line["engine"])
    task = given_task(shlex.split(line.get("options") or ""))
    return engine_of_task(task) if task else _engine_of_row(line.get("system", ""))


@cache
def _engine_of_row(row: str) -> str:
    return engine_of_task(load(row, "", PAPER).task["task"]) if row in names("rows") else "not stated"
