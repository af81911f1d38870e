"""Changes of ``fairseq.options``: a mistake on a command line is answered with the nearest right name."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any

from amlp_fairseq.common.arguments import Parser
from amlp_fairseq.common.renamed_options import with_present_flags
from amlp_fairseq.compat import commands
from amlp_fairseq.compat.changes import Stock
from amlp_fairseq.compat.internals import TASK_REGISTRY
from amlp_fairseq.compat.registration import is_ours


def get_parser(stock: Stock, *args: object, **kwargs: object) -> Any:
    """Make the parser a :class:`FairseqParser`, and let programs that were imported after the plugin check their
    options."""
    parser = stock(*args, **kwargs)
    _convert(parser)
    commands.check_options()
    return parser


def parse_args_and_arch(
    stock: Stock, parser: ArgumentParser, input_args: Any = None, *args: object, **kwargs: object
) -> Any:
    """Parse with a :class:`FairseqParser`, say that a task or an architecture is missing, and let only ``--tpu`` itself
    ask for a TPU: stock does so whenever ``--bf16`` is given. Options may have former names."""
    _convert(parser)
    input_args = with_present_flags(sys.argv[1:] if input_args is None else input_args)
    commands.check_options()
    try:
        result = stock(parser, input_args, *args, **kwargs)
    except RuntimeError as error:
        if error.args:
            raise
        parser.error("--arch NAME is needed, or --row and --scale of amlp-fairseq train")  # stock says nothing
    except KeyError as error:
        if error.args != (None,):
            raise
        parser.error("--task NAME is needed: that of the training")
    parsed = result[0] if isinstance(result, tuple) else result
    if getattr(parsed, "bf16", False):
        asked, _ = parser.parse_known_args(input_args)
        parsed.tpu = getattr(asked, "tpu", False)
    return result


def _convert(parser: ArgumentParser) -> None:
    if type(parser) is argparse.ArgumentParser:
        parser.__class__ = FairseqParser


class FairseqParser(Parser):
    """The parser of a program of fairseq, which knows what other tasks have."""

    def unknown(self, flag: str, others: Iterable[str] = ()) -> str:
        owners = _owners(flag)
        return f"{flag} is an option of {owners} only" if owners else super().unknown(flag, others)


def _owners(flag: str) -> str:
    """The tasks of the plugin that have an option which the chosen one does not have."""
    name = flag.removeprefix("--").replace("-", "_")
    owners = [
        task for task, cls in TASK_REGISTRY.items()
        if is_ours(cls) and name in _fields(cls.__dict__.get("__dataclass"))
    ]  # fmt: skip
    return " and ".join(f"--task {task}" for task in owners)


def _fields(config: Any) -> Any:
    return getattr(config, "__dataclass_fields__", {})
