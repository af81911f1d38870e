"""The options that fairseq's commands have, with those of the plugin's tasks and models."""

from __future__ import annotations

import argparse
import functools

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES

from amlp_fairseq.compat.internals import TASK_REGISTRY, FairseqConfig, gen_parser_from_dataclass


def fairseqs_flags(kind: str, *words: str) -> set[str]:
    """The flags that a command of fairseq takes.

    Args:
        kind: of its parser: ``training``, ``generation``, ``validation``.
        words: of its command line, those that choose task, architecture, criterion, …; of a training without them the
            flags are those that it always takes.
    """
    parser = getattr(options, f"get_{kind}_parser")(default_task="translation")
    if words or kind != "training":
        options.parse_args_and_arch(parser, ["DATA", *words], parse_known=True)  # adds the options of what is chosen
    return {flag for flag in parser._option_string_actions if flag.startswith("--")}


@functools.cache
def known_flags() -> frozenset[str]:
    """The flags of all tasks, models and other parts that fairseq's commands know, without their dashes."""
    flags = (flag for action in every_option() for flag in action.option_strings)
    return frozenset(flag.removeprefix("--") for flag in flags if flag.startswith("--"))


def every_option() -> list[argparse.Action]:
    """The options of all tasks, models and other parts that fairseq's commands know."""
    formatter = functools.partial(argparse.HelpFormatter, width=80)  # or every option asks how wide the terminal is
    parser = argparse.ArgumentParser(conflict_handler="resolve", formatter_class=formatter)
    parser.add_argument("--arch")
    gen_parser_from_dataclass(parser, FairseqConfig())
    parts = {*ARCH_MODEL_REGISTRY.values(), *TASK_REGISTRY.values()}
    for registry in REGISTRIES.values():
        parts.update(registry["registry"].values())
    for part in parts:
        if hasattr(part, "add_args"):
            part.add_args(parser)
        elif hasattr(part, "__dataclass"):
            gen_parser_from_dataclass(parser, getattr(part, "__dataclass")())
    return parser._actions
