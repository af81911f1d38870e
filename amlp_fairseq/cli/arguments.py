"""The options that load a ``Translator``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from amlp_fairseq.common.arguments import Parser, StoreOnce, add_device, parse_with_fairseqs, positive
from amlp_fairseq.model_folder.config import SEVERAL, members, read_config
from amlp_fairseq.text import sentences
from amlp_fairseq.translator.engine_backend import OWN_VALUES, kind_of
from amlp_fairseq.translator.options import Options

#: The help text of ``--device``.
DEVICES = "cpu, cuda, cuda:1, … (default: cpu)"

#: The languages of a multilingual model.
LANGUAGES = ("source_lang", "target_lang")
#: The names of what :func:`add_text_arguments` adds.
TEXT = ("split_sentences", "long", "max_length")

#: The decoding options that people use, with fairseq's defaults: a test compares them with ``amlp-fairseq options``,
#: which is not asked here because it takes seconds.
DECODING: dict[str, tuple[str, str]] = {
    "--beam": ("5", "hypotheses that are kept"),
    "--nbest": ("1", "hypotheses that are written"),
    "--lenpen": ("1", "length penalty: below 1 shorter, above 1 longer translations"),
    "--length-penalty": ("fairseq", "its formula: fairseq, gnmt"),
    "--max-len-a": ("0", "at most A times the pieces of the source, …"),
    "--max-len-b": ("200", "… and B, are written"),
    "--no-repeat-ngram-size": ("0", "no N words occur twice; 0: they may"),
    "--decode-dtype": ("", "float32, bfloat16, float16 (CUDA), int8 (CPU); otherwise that of the weights"),
    "--cuda-graphs": ("off", "replay decoder calls"),
    "--print-alignment": ("", "hard: with pairs of pieces; soft: with the attention"),
    "--replace-unk": ("", "put a word of the source, or its translation in a FILE, in the place of an unknown one"),
    "--repetition-penalty": ("1.0", "above 1: words that have been written become less likely"),
    "--rescore-path": ("", "an autoregressive model that reranks the hypotheses"),
    "--draft-path": ("", "a model that drafts, for a Transformer with --beam 1"),
    "--iter-decode-max-iter": ("10", "CMLMC: refinements at most"),
    "--iter-decode-with-beam": ("1", "CMLMC: lengths that are tried"),
}


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """A part of the help text with :data:`DECODING`."""
    lines = [f"  {name:<24}{text}{default and f' ({default})'}" for name, (default, text) in DECODING.items()]
    parser.add_argument_group(
        "decoding options, with what holds where the model's folder says nothing (all: amlp-fairseq options)",
        "\n".join(lines),
    )


class Model(StoreOnce):
    """Names what there is for several models."""

    give_one = SEVERAL


def add_translator_arguments(parser: argparse.ArgumentParser, inputs: str) -> None:
    """The options that load a ``Translator``; ``inputs`` is what the command calls its inputs: lines, texts."""
    parser.add_argument(
        "--model",
        action=Model,
        type=Path,
        required=True,
        metavar="DIR",
        help="made by amlp-fairseq package; A:B: two models decode as one, with the mean of their probabilities",
    )
    parser.add_argument("-s", "--source-lang", metavar="CODE", help="of a multilingual model (default: the folder's)")
    parser.add_argument("-t", "--target-lang", metavar="CODE", help="the language to translate into")
    add_text_arguments(parser, inputs)
    parser.add_argument(
        "--max-tokens", type=positive, default=4000, metavar="N", help="source pieces of a batch (default: 4000)"
    )
    add_device(parser, "cpu", DEVICES)
    parser.add_argument(
        "--inter-threads", type=positive, metavar="N", help="batches at a time on a CPU (default: as many as threads)"
    )
    parser.add_argument(
        "--intra-threads", type=positive, metavar="N", help="threads of each (default: OMP_NUM_THREADS, shared out)"
    )
    parser.add_argument(
        "--suppress", nargs="+", metavar="TEXT", help="words, or several in quotes, that are not written"
    )
    parser.add_argument(
        "--sampling-minp", type=float, metavar="P", help="sample words of P times the best one's probability at least"
    )
    parser.add_argument(
        "--min-alternative-prob", type=float, metavar="P", help="further --alternatives have this probability at least"
    )
    add_decoding_options(parser)


def add_text_arguments(parser: argparse.ArgumentParser, inputs: str) -> None:
    """The options that say what of a text is translated at once."""
    parser.add_argument(
        "--split-sentences",
        action=argparse.BooleanOptionalAction,
        help=f"translate the sentences of {inputs} one by one (default: as the model says, which may summarise)",
    )
    parser.add_argument(
        "--long",
        choices=sentences.LONG,
        default="split",
        help="a sentence that is too long for the model is cut between words, its rest is not read, or it is an error "
        "(default: split)",
    )
    parser.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="subword tokens of the longest sentence that is accepted (default: the model's, from its training)",
    )


def decoding_flags(*models: Path) -> set[str]:
    """The decoding options that some models have in common."""
    from amlp_fairseq.translator import decoding_options

    return decoding_options.flags(*(read_config(model)["task"]["_name"] for model in models))


def parse_translator_arguments(parser: Parser) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line of a command with a ``Translator``: what the parser reads, and the keyword arguments of
    ``Translator``, decoding options included. fairseq, whose import takes seconds, reads only options that the engine
    does not have, and says what is wrong with them.

    Args:
        parser: with the options of :func:`add_translator_arguments`.
    """
    args, words = parser.parse_known_args()
    own = {name: value for name in OWN_VALUES if (value := getattr(args, name)) is not None}
    options = _engine_options(words, args.model)
    if options is None and "--alternatives" in words:
        raise ValueError("--alternatives: the engine does not have them for this model, or with these options")
    if options is None:
        from amlp_fairseq.compat.flags import known_flags
        from amlp_fairseq.translator import decoding_options

        args, words = parse_with_fairseqs(
            parser, known_flags, accepted=lambda args: decoding_flags(*members(args.model))
        )
        options = decoding_options.parse(words, read_config(members(args.model)[0])["task"]["_name"])
    names = (*TEXT, *LANGUAGES, "device", "max_tokens", "inter_threads", "intra_threads")
    return args, {**{name: getattr(args, name) for name in names}, **own, **options}


class _QuietParser(argparse.ArgumentParser):
    """Raises ValueError for what it does not know."""

    def error(self, message: str) -> Any:
        raise ValueError(message)


def _engine_options(words: list[str], model: Path) -> dict[str, Any] | None:
    """The decoding options of a command line; None if there is one that the engine does not have for the model."""
    parser = _QuietParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, kind in get_type_hints(Options).items():
        flag = f"--{name.replace('_', '-')}"
        if kind is bool:
            parser.add_argument(flag, action="store_true")
        elif name in ("print_alignment", "replace_unk"):
            parser.add_argument(flag, nargs="?", const="hard" if name == "print_alignment" else "")
        elif name not in OWN_VALUES:
            parser.add_argument(flag, type=kind if kind in (int, float) else str)
    try:
        options = vars(parser.parse_args(words))
        return None if kind_of(read_config(members(model)[0])).lacks(options) else options
    except ValueError:
        return None


#: Error text of :func:`refuse_details` where only the best translation is shown.
BEST_ALONE = "has no effect: the best translation alone is shown"


def refuse_details(options: Mapping[str, Any], says: str) -> None:
    """Raise ValueError for decoding options that ask for what a command does not print, and say what is to be done."""
    if (nbest := options.get("nbest", 1)) > 1:
        raise ValueError(f"--nbest {nbest} {says}")
    if options.get("print_alignment") is not None:
        raise ValueError(f"--print-alignment {says}")
