"""Softmax attention where it does not go through the fused operator: its gradients in bfloat16 on a CPU."""

from __future__ import annotations

import pytest
import torch
from test_registry import BATCH, CHANNELS, build
from torch import Tensor


def gradients(layer: torch.nn.Module, x: Tensor, padding: Tensor | None, causal: bool) -> list[Tensor]:
    """Gradients of a sum over the words that are not padding, by the input and by all parameters."""
    n = x.size(0)
    mask = torch.full((n, n), -torch.inf, dtype=x.dtype).triu(1) if causal else None
    out, _ = layer(x, x, x, key_padding_mask=padding, attn_mask=mask)
    kept = out if padding is None else out.masked_fill(padding.t().unsqueeze(2), 0.0)
    kept.square().sum().backward()
    return [each.grad for each in (x, *layer.parameters())]


@pytest.mark.parametrize("length", [9, 600])
@pytest.mark.parametrize("padded", ["nothing", "right", "left"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_in_bfloat16_are_near_float64(length: int, padded: str, causal: bool) -> None:
    x = torch.randn(length, BATCH, CHANNELS, generator=torch.Generator().manual_seed(1)).bfloat16()
    places, padding = torch.arange(length).repeat(BATCH, 1), None
    if padded != "nothing":
        padding = (places if padded == "left" else places.flip(1)) < torch.tensor([[0], [2], [5]])
    half, exact = build("softmax", "decoder").bfloat16(), build("softmax", "decoder").bfloat16().double()
    found = gradients(half, x.clone().requires_grad_(), padding, causal)
    expected = gradients(exact, x.double().requires_grad_(), padding, causal)
    largest = max(right.abs().max() for right in expected)
    for each, right in zip(found, expected, strict=True):
        assert each.dtype == torch.bfloat16
        assert (each.double() - right).abs().max() <= 0.03 * right.abs().max() + 1e-3 * largest
