"""fairseq's ``--bf16`` asks for a TPU, and its ``--fp16`` for a GPU."""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from fairseq import options
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
from fairseq.trainer import Trainer


def install() -> None:
    """Let only ``--tpu`` itself set ``tpu``: fairseq's parser sets it whenever ``--bf16`` is given. Where there is no
    GPU, ``--fp16`` keeps the parameters apart: fairseq asks for one to join them (``--fp16-no-flatten-grads``). It also
    does where gradients overflow, which then is an error that says so."""
    parse, begin = options.parse_args_and_arch, Trainer.__init__
    check = DynamicLossScaler.check_overflow

    @functools.wraps(parse)
    def parse_args_and_arch(parser: argparse.ArgumentParser, input_args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        result = parse(parser, input_args, *rest, **kwargs)
        args = result[0] if isinstance(result, tuple) else result
        if getattr(args, "bf16", False):
            asked, _ = parser.parse_known_args(input_args)
            args.tpu = getattr(asked, "tpu", False)
        return result

    @functools.wraps(begin)
    def __init__(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        common = getattr(cfg, "common", cfg)
        if common.fp16 and not torch.cuda.is_available():
            common.fp16_no_flatten_grads = True
        begin(self, cfg, *args, **kwargs)

    @functools.wraps(check)
    def check_overflow(self: Any, grad_norm: Any) -> None:
        scale = self.loss_scale
        try:
            check(self, grad_norm)
        except OverflowError as error:
            if torch.cuda.is_available():
                raise
            raise ValueError(
                f"--fp16: gradients overflow with a loss scale of {scale:g}, and fairseq goes on from there only on a "
                "GPU: give --bf16, or a smaller --fp16-init-scale"
            ) from error

    options.parse_args_and_arch = parse_args_and_arch
    Trainer.__init__ = __init__
    DynamicLossScaler.check_overflow = check_overflow
