"""fairseq's ``--bf16`` asks for a TPU, and its ``--fp16`` for a GPU."""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from fairseq import options


def install() -> None:
    """Let only ``--tpu`` itself set ``tpu``: fairseq's parser sets it whenever ``--bf16`` is given. Where there is no
    GPU, ``--fp16`` keeps the parameters apart: fairseq asks for one to join them (``--fp16-no-flatten-grads``)."""
    parse = options.parse_args_and_arch

    @functools.wraps(parse)
    def parse_args_and_arch(parser: argparse.ArgumentParser, input_args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        result = parse(parser, input_args, *rest, **kwargs)
        args = result[0] if isinstance(result, tuple) else result
        if getattr(args, "bf16", False):
            asked, _ = parser.parse_known_args(input_args)
            args.tpu = getattr(asked, "tpu", False)
        if getattr(args, "fp16", False) and not torch.cuda.is_available():
            args.fp16_no_flatten_grads = True
        return result

    options.parse_args_and_arch = parse_args_and_arch
