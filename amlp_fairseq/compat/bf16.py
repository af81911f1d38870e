"""fairseq's ``--bf16`` asks for a TPU."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from fairseq import options


def install() -> None:
    """Let only ``--tpu`` itself set ``tpu``: fairseq's parser sets it whenever ``--bf16`` is given."""
    parse = options.parse_args_and_arch

    @functools.wraps(parse)
    def parse_args_and_arch(parser: argparse.ArgumentParser, input_args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        result = parse(parser, input_args, *rest, **kwargs)
        args = result[0] if isinstance(result, tuple) else result
        if getattr(args, "bf16", False):
            asked, _ = parser.parse_known_args(input_args)
            args.tpu = getattr(asked, "tpu", False)
        return result

    options.parse_args_and_arch = parse_args_and_arch
