"""SSRU by its equations, one word after the other in NumPy; and what each direction of an IBDecoder sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_registry import CHANNELS, attention_spec, random, run
from torch import Tensor

from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.attention.ssru import SSRU

pytestmark = pytest.mark.usefixtures("float64")

#: Directions h and words of a step z.
ORDERS = [(1, 1), (1, 3), (2, 2), (2, 4), (4, 4)]


def build(h: int, z: int) -> Any:
    spec = attention_spec("causal self", z)
    torch.manual_seed(0)
    layer = SSRU(AttentionSpec(spec.options, "decoder", 0, "causal self", z, h)).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return layer


def by_equations(layer: Any, x: np.ndarray, h: int, z: int) -> np.ndarray:
    """Outputs (T, C) for the words x (T, C) of one sentence."""
    p = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    cells = [np.zeros(CHANNELS) for _ in range(h)]
    rows = []
    for step in range(0, len(x), z):
        words = x[step : step + z]
        for slot, word in enumerate(words):
            f = 1 / (1 + np.exp(-(p["forget.weight"] @ word + p["forget.bias"])))
            cells[slot % h] = f * cells[slot % h] + (1 - f) * (p["candidate.weight"] @ word)
        for slot in range(len(words)):
            seen = cells[slot % h]
            for other in range(h):
                if other != slot % h:
                    seen = seen + p["others"] * cells[other]
            rows.append(np.maximum(seen, 0))
    return np.stack(rows)


@pytest.mark.parametrize(("h", "z"), ORDERS)
@pytest.mark.parametrize("length", [12, 13])
def test_the_layer_is_its_equations(h: int, z: int, length: int) -> None:
    """Also where the last step is not full, and where words are padding, on either side."""
    layer, x = build(h, z), random(length)
    for real in (slice(None), slice(None, length - 3), slice(z, None)):
        mask = torch.ones(x.size(1), length, dtype=torch.bool)
        mask[:, real] = False
        out = run(layer, x, key_padding_mask=mask if mask.any() else None)
        for b in range(x.size(1)):
            expected = by_equations(layer, x[real, b].numpy(), h, z)
            np.testing.assert_allclose(out[real, b].detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("h", "z"), ORDERS)
def test_any_chunking_gives_the_same(h: int, z: int) -> None:
    layer, x, state = build(h, z), random(6 * z), {}
    sizes = [z, 3 * z, 2 * z]
    parts = [run(layer, part, incremental_state=state) for part in x.split(sizes)]
    torch.testing.assert_close(torch.cat(parts), run(layer, x))
    (saved,) = state.values()
    assert saved["cell"].shape == (x.size(1), h, CHANNELS)


def test_a_direction_has_its_own_cell_and_sees_the_others_as_far_as_they_are_written() -> None:
    """Without the weights of the others, a direction does not depend on them."""
    layer, x = build(2, 2), random(8)

    def changed(out: Tensor, word: int) -> list[int]:
        other = x.clone()
        other[word] += 1
        return (run(layer, other) - out).abs().flatten(1).amax(dim=1).nonzero().flatten().tolist()

    out = run(layer, x)
    assert [changed(out, word) for word in (2, 5)] == [[2, 3, 4, 5, 6, 7], [4, 5, 6, 7]]
    with torch.no_grad():
        layer.others.zero_()
    out = run(layer, x)
    assert [changed(out, word) for word in (2, 5)] == [[2, 4, 6], [5, 7]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_cell_of_half_precision_is_float32(dtype: torch.dtype) -> None:
    """A gate that rounds to 1 in half precision would never forget."""
    layer = build(1, 1)
    with torch.no_grad():
        layer.forget.weight.zero_()
        layer.forget.bias.fill_(9.0)  # f = 1 - 1.2e-4, which is 1 in both types
    x = torch.ones(20000, 1, CHANNELS)
    expected = run(layer, x)[-1]
    out = run(layer.to(dtype), x.to(dtype))[-1]
    assert layer.init_state(1, 0, x.to(dtype))["cell"].dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=0.05, rtol=0.05)
