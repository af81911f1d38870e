"""--fp16 without a GPU."""

from __future__ import annotations

import pytest
import torch
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler

import amlp_fairseq.plugin  # noqa: F401  (changes it)


def test_an_overflow_without_a_gpu_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq asks for a GPU there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(OverflowError, match="setting loss scale to: 2"):
        DynamicLossScaler(init_scale=4).check_overflow(float("inf"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"--fp16: gradients overflow with a loss scale of 4, .* smaller --fp16-init-sc"
    ):
        DynamicLossScaler(init_scale=4).check_overflow(float("inf"))
