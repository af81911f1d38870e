"""fairseq's ``--bf16`` asks for a TPU, and its ``--fp16`` for a GPU."""

from __future__ import annotations

import argparse
from typing import Any

import torch


def only_asked_tpu(
    parse: Any, parser: argparse.ArgumentParser, input_args: Any = None, *rest: Any, **kwargs: Any
) -> Any:
    """Let only ``--tpu`` itself set ``tpu``: fairseq's parser sets it whenever ``--bf16`` is given."""
    result = parse(parser, input_args, *rest, **kwargs)
    args = result[0] if isinstance(result, tuple) else result
    if getattr(args, "bf16", False):
        asked, _ = parser.parse_known_args(input_args)
        args.tpu = getattr(asked, "tpu", False)
    return result


def without_flat_gradients(begin: Any, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Keep the parameters of ``--fp16`` apart where there is no GPU: fairseq asks for one to join them
    (``--fp16-no-flatten-grads``)."""
    common = getattr(cfg, "common", cfg)
    if common.fp16 and not torch.cuda.is_available():
        common.fp16_no_flatten_grads = True
    begin(self, cfg, *args, **kwargs)


def overflow_without_gpu(check: Any, self: Any, grad_norm: Any) -> None:
    """Raise ValueError where gradients overflow and there is no GPU, without which fairseq cannot go on."""
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
