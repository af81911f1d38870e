"""The options that load a ``Translator``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from amlp_fairseq.translator import decoding_options, long_inputs
from amlp_fairseq.translator.model_folder import read_config
from amlp_fairseq.usage import positive


def add_translator_arguments(parser: argparse.ArgumentParser, inputs: str) -> None:
    """The options that load a ``Translator``; ``inputs`` is what the command calls its inputs: lines, texts."""
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="made by amlp-fairseq package")
    parser.add_argument(
        "--long",
        choices=long_inputs.CHOICES,
        default="split",
        help=f"{inputs} that are too long for the model (default: split, by sentence)",
    )
    parser.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="pieces of the longest that is not too long (default: of the training)",
    )
    parser.add_argument("--max-tokens", type=positive, default=4000, metavar="N", help="source pieces of a batch")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")


def translator_settings(args: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    """The keyword arguments of ``Translator`` that these options and the decoding options behind them give."""
    options = decoding_options.parse(words, read_config(args.model)["task"]["_name"])
    names = ("device", "max_tokens", "long", "max_length")
    return {**{name: getattr(args, name) for name in names}, **options}
