"""Decoding options on the command line: those of fairseq-generate that say how a sentence is decoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fairseq import options
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask

from amlp_fairseq import plugin  # noqa: F401 - registers the tasks
from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, GenerationConfig
from amlp_fairseq.decoding.packed_linear import fast_dtypes
from amlp_fairseq.decoding.step_decoder import StepDecoder
from amlp_fairseq.tasks.plugin_translation import DecodingConfig, PluginTranslationTask
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCTask
from amlp_fairseq.text.unknown_words import COPIES

#: Options of tasks that are about decoding.
TASK_OPTIONS = frozenset(DecodingConfig.__dataclass_fields__) | {
    *("length_penalty", "words_after_end", "finished", "deduplicate_ngrams", "repetition_penalty"),
    *("draft_path", "draft", "draft_file", "draft_words"),
}
#: Options of fairseq-generate that say what it prints.
OUTPUT = {"print_step", "sacrebleu", "score_reference"}
#: Options of fairseq-generate that need more than a text, and where they are.
BEYOND_TEXT = {
    "prefix_size": "--target-prefix FILE of amlp-fairseq translate",
    **dict.fromkeys(("constraints", "lm_path", "lm_weight"), "amlp-fairseq interactive and generate have it"),
}
#: Options of a Translator that fairseq-generate does not have, or has as another command's.
OWN = {"alternatives", "seed", "suppress", "sampling_minp", "min_alternative_prob"}
#: The kind of value that an option needs, by the type of its field.
KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


#: The ranges of some options, which fairseq does not check, or asserts.
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("temperature", "repetition_penalty"), (lambda value: value > 0, "a number above 0")),
    "sampling_topk": (lambda value: value == -1 or value > 0, "a number of words, or -1 for all,"),
    "sampling_topp": (lambda value: value == -1 or 0 < value <= 1, "a share from 0 to 1, or -1 for all,"),
    "seed": (lambda value: type(value) is int and 0 <= value < 2**31, "a whole number from 0 to 2147483647"),
}


def check(options: Mapping[str, Any], task: str) -> None:
    """Raise ValueError for a value that is not of its option's type, none of its choices, or no finite number
    (``unkpen`` may be infinite); names both.

    Args:
        options: by name; those that do not exist are left to others.
        task: the name of the task that decodes.
    """
    types: dict[str, Any] = {}
    for fields in (GenerationConfig, TASK_DATACLASS_REGISTRY.get(task)):
        types |= get_type_hints(fields) if fields else {}
    for name, value in options.items():
        if types.get(name) in KINDS:
            kind, needed = KINDS[types[name]]
            unusable = not isinstance(value, kind) or math.isnan(value) or (math.isinf(value) and name != "unkpen")
            if isinstance(value, bool) != (kind is bool) or unusable:
                raise ValueError(f"{name}={value!r}: {needed} is needed")
        if name in RANGES and not RANGES[name][0](value):
            raise ValueError(f"{name}={value!r}: {RANGES[name][1]} is needed")
        kinds = (types.get(name), *get_args(types.get(name)))
        enumerated = [each for each in kinds if isinstance(each, type) and issubclass(each, Enum)]
        choices = [choice.value for each in enumerated for choice in each]
        if choices and value is not None and value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(choices)}")


def known(task: str) -> set[str]:
    """The names of all decoding options of a task."""
    of_task = TASK_OPTIONS & getattr(TASK_DATACLASS_REGISTRY.get(task), "__dataclass_fields__", {}).keys()
    return (GenerationConfig.__dataclass_fields__.keys() | of_task | OWN) - OUTPUT - BEYOND_TEXT.keys() - {"_name"}


def flags(*tasks: str) -> set[str]:
    """The flags of the decoding options that each of these tasks honours."""
    honoured = (getattr(TASK_REGISTRY[task], "HONOURED_GENERATION_OPTIONS", known(task)) for task in tasks)
    names = (known(task) & (each | TASK_OPTIONS) for task, each in zip(tasks, honoured, strict=True))
    return {f"--{name.replace('_', '-')}" for name in set.intersection(*names)}


def parse(words: list[str], task: str) -> dict[str, Any]:
    """The decoding options that are given, by name.

    Args:
        words: of the command line: ``["--beam", "4", "--decode-dtype", "int8"]``.
        task: the name of the task that decodes.

    Raises:
        ValueError: for an option of fairseq-generate that is not about decoding, and another ``--task``.
        SystemExit: for what is no option, after argparse's message.
    """
    if task not in TASK_DATACLASS_REGISTRY:  # of fairseq's, whose languages the folder has
        return parse(words, "translation")
    parser = options.get_generation_parser(default_task=task)
    line = [str(Path()), "--task", task, *words]
    given = vars(options.parse_args_and_arch(parser, line, suppress_defaults=True))
    if given["task"] != task:
        raise ValueError(f"--task {given['task']}: the model decodes with {task}, leave --task out")
    own = known(task)
    others = [name for name in given if name not in own | {"data", "task"}]
    if others:
        flag = others[0].replace("_", "-")
        hint = BEYOND_TEXT.get(others[0], f"amlp-fairseq options {task} lists them")
        raise ValueError(f"--{flag} is not an option of decoding ({hint})")
    if given.get("replace_unk") in COPIES:
        given["replace_unk"] = ""
    return {name: value for name, value in given.items() if name in own}


def quantisable(task: FairseqTask, model: BaseFairseqModel) -> bool:
    """True if a model can decode in int8."""
    refines = isinstance(task, TranslationCMLMCTask)
    return refines or (isinstance(task, PluginTranslationTask) and StepDecoder.supports(model.decoder))


def set_decode_dtype(task: FairseqTask, model: BaseFairseqModel, weights: str) -> None:
    """Let a model whose weights are stored as int8 decode in int8 where it and its device can, unless
    ``--decode-dtype`` says otherwise. Others decode in float32; so do weights that are stored as bfloat16, whose
    arithmetic is slow on processors without AVX-512.

    Args:
        task: its config is changed.
        model: on its device.
        weights: the type in which they are stored.
    """
    able = "int8" in fast_dtypes(next(model.parameters()).device.type)
    if weights == "int8" and able and quantisable(task, model) and task.cfg.decode_dtype is None:
        task.cfg.decode_dtype = "int8"
