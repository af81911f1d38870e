"""Translate over HTTP with a model folder: POST /translate, GET /health (docs/serving.md).

    amlp-fairseq serve --model DIR --port 8000
    curl localhost:8000/translate -d '{"texts": ["A sentence.", "Another one."]}'

Requests that come at the same time are translated together. Further options are those of fairseq-generate that are
about decoding (--beam, --nbest, --decode-dtype int8, ...); by default those of the model are taken.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from amlp_fairseq.cli.arguments import add_translator_arguments, parse_translator_arguments
from amlp_fairseq.common.arguments import command_parser, positive, say_next_line
from amlp_fairseq.server.limits import Limits
from amlp_fairseq.translator.translator import Translator


def port(text: str) -> int:
    """A number from 0 to 65535."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 0 to 65535 is needed")
    return int(text)


def host(text: str) -> str:
    """A name or an address; an empty one would be all addresses."""
    if not text:
        raise argparse.ArgumentTypeError("'': an address is needed, 0.0.0.0 for all")
    return text


def seconds(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds above 0 is needed")
    return value


def name_of(model: Path) -> str:
    """The name of a folder; of an ensemble ``A:B`` those of all."""
    folders = [model] if model.is_dir() else map(Path, str(model).split(":"))
    return ":".join(folder.resolve().name for folder in folders)


def main() -> None:
    parser = command_parser("serve", __doc__)
    add_translator_arguments(parser, "texts")
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="default: 8000; 0 takes a free one")
    parser.add_argument("--host", type=host, default="127.0.0.1", help="0.0.0.0 for all addresses (default: 127.0.0.1)")
    limits = parser.add_argument_group("limits")
    for each in fields(Limits):
        kind, metavar = (positive, "N") if isinstance(each.default, int) else (seconds, "SECONDS")
        text = f"{each.metadata['help']} (default: {each.default})"
        limits.add_argument(
            f"--{each.name.replace('_', '-')}", type=kind, default=each.default, metavar=metavar, help=text
        )
    serve(*parse_translator_arguments(parser))


def serve(args: argparse.Namespace, settings: Mapping[str, Any]) -> None:
    from amlp_fairseq.server import server

    with server.listen(args.host, args.port) as listener:
        translator = Translator(args.model, **settings)
        name, (source, target) = name_of(args.model), translator.languages

        def announce(address: str) -> None:
            print(f"{name} translates {source} to {target} on {address}", flush=True)
            say_next_line(f'curl {address}/translate -d \'{{"texts": ["…"]}}\'')

        limits = Limits(**{each.name: getattr(args, each.name) for each in fields(Limits)})
        server.server(translator, listener, limits, announce).run([listener])


if __name__ == "__main__":
    main()
