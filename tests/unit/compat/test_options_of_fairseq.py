"""``--bf16`` without a TPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from fairseq import options

import amlp_fairseq.plugin  # noqa: F401  (mends it)


@pytest.mark.parametrize(
    ("get_parser", "command"),
    [
        (options.get_training_parser, "data-bin --arch transformer"),
        (options.get_generation_parser, "data-bin --path model.pt"),
    ],
    ids=["train", "generate"],
)
@pytest.mark.parametrize(
    ("given", "bf16", "tpu"),
    [
        ("--bf16", True, False),
        ("--bf16 --tpu", True, True),
        ("--memory-efficient-bf16", True, False),
        ("--tpu", False, True),
        ("--fp16", False, False),
    ],
)
@pytest.mark.parametrize("from_argv", [False, True], ids=["input_args", "sys.argv"])
def test_bf16_does_not_ask_for_a_tpu(
    given: str,
    bf16: bool,
    tpu: bool,
    get_parser: Callable[[], Any],
    command: str,
    from_argv: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*command.split(), *given.split()]
    monkeypatch.setattr(sys, "argv", ["fairseq", *words] if from_argv else ["fairseq"])
    args = options.parse_args_and_arch(get_parser(), None if from_argv else words)
    assert (args.bf16, args.tpu) == (bf16, tpu)


def test_bf16_with_unknown_options() -> None:
    parser = options.get_training_parser()
    args, extra = options.parse_args_and_arch(
        parser, ["data-bin", "--arch", "transformer", "--bf16", "--strange"], parse_known=True
    )
    assert (args.bf16, args.tpu, extra) == (True, False, ["--strange"])
