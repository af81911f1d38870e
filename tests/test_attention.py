"""One contract for every self-attention of the registry, in the encoder and in the decoder."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from amlp_fairseq.modules.attention import ATTENTIONS, Place, register_attention
from amlp_fairseq.modules.dynamic_conv import NORMALIZATIONS

WIDTH, CHANNELS, BATCH = 5, 16, 3
STEPS = [1, 2, 3]
#: Those that see k positions only, and of them those that keep no more than k.
WINDOWED = ["cnn", "dynamic_conv", "light_conv", "local"]
CONSTANT_STATE = ["average", "cnn", "dynamic_conv", "light_conv"]
IN_DECODER = [(name, step) for name in sorted(ATTENTIONS) for step in STEPS if name != "cnn" or step == 1]


def place(side: str, step: int = 1, **options: Any) -> Place:
    sides = {
        f"{s}_{name}": value
        for s in ("encoder", "decoder")
        for name, value in {
            "embed_dim": CHANNELS,
            "ffn_embed_dim": 32,
            "attention_heads": 4,
            "layers": 1,
            "kernel_size_list": [WIDTH],
            "conv_dim": None,
            "conv_heads": None,
            "glu": 1,
        }.items()
    }
    general = {
        "average_ffn": False,
        "no_average_gate": False,
        "activation_dropout": 0.0,
        "attention_dropout": 0.0,
        "weight_dropout": None,
        "input_dropout": 0.0,
        "weight_normalization": "softmax",
    }
    return Place(Namespace(**{**sides, **general, **options}), side, 0, step)


def build(name: str, side: str, step: int = 1, **options: Any) -> Any:
    torch.manual_seed(0)
    return ATTENTIONS[name](place(side, step, **options)).eval()


def run(layer: Any, x: Tensor, step: int = 0, start: int = 0, **arguments: Any) -> Tensor:
    """The layer on ``x`` (T, B, C); with ``step``, under the decoder's mask for positions from ``start`` on."""
    if step:
        queries, keys = torch.arange(start, start + len(x)), torch.arange(start + len(x))
        hidden = keys // step > (queries // step).unsqueeze(1)
        arguments["attn_mask"] = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
    return layer(x, x, x, **arguments)[0]


def random(length: int, seed: int = 1) -> Tensor:
    return torch.randn(length, BATCH, CHANNELS, generator=torch.Generator().manual_seed(seed))


def reached(out: Tensor, x: Tensor) -> Tensor:
    """Whether input j moves output i, (T, T)."""
    direction = torch.randn(CHANNELS, generator=torch.Generator().manual_seed(2))
    rows = [torch.autograd.grad((row @ direction).sum(), x, retain_graph=True)[0] for row in out]
    return torch.stack([row.ne(0).flatten(1).any(dim=1) for row in rows])


@pytest.mark.parametrize(("name", "step"), IN_DECODER)
def test_decoder_sees_its_step_and_what_is_before(name: str, step: int) -> None:
    x = random(12).requires_grad_()
    i, j = torch.arange(12).unsqueeze(1), torch.arange(12)
    end = i // step * step + step - 1
    expected = (j <= end) & ((j > end - WIDTH) if name in WINDOWED else (j >= 0))
    assert torch.equal(reached(run(build(name, "decoder", step), x, step), x), expected)


@pytest.mark.parametrize("width", [4, 5])
@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_encoder_sees_both_sides(name: str, width: int) -> None:
    x = random(12).requires_grad_()
    distance = torch.arange(12) - torch.arange(12).unsqueeze(1)
    everything = torch.ones(12, 12, dtype=torch.bool)
    expected = (distance >= -((width - 1) // 2)) & (distance <= width // 2) if name in WINDOWED else everything
    assert torch.equal(reached(run(build(name, "encoder", encoder_kernel_size_list=[width]), x), x), expected)


@pytest.mark.parametrize("width", [1, 2, 5, 9])
@pytest.mark.parametrize(("name", "step"), IN_DECODER)
@settings(deadline=None, max_examples=12)
@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_any_chunking_equals_the_whole(name: str, step: int, width: int, chunks: list[int]) -> None:
    layer = build(name, "decoder", step, decoder_kernel_size_list=[width])
    x = random(step * sum(chunks))
    state: dict = {}
    parts, start = [], 0
    for chunk in chunks:
        new = x[start : start + step * chunk]
        parts.append(run(layer, new, step, start, incremental_state=state))
        start += step * chunk
    torch.testing.assert_close(torch.cat(parts), run(layer, x, step), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "step"), IN_DECODER)
def test_reordering_follows_the_beam(name: str, step: int) -> None:
    layer = build(name, "decoder", step)
    x, order = random(4 * step), torch.tensor([2, 0, 0, 1])
    state: dict = {}
    run(layer, x[: 3 * step], step, incremental_state=state)
    for module in layer.modules():
        if hasattr(module, "reorder_incremental_state"):
            module.reorder_incremental_state(state, order)
    last = run(layer, x[3 * step :, order], step, 3 * step, incremental_state=state)
    torch.testing.assert_close(last, run(layer, x[:, order], step)[3 * step :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONSTANT_STATE)
def test_state_never_grows(name: str) -> None:
    layer = build(name, "decoder")
    for first in (1, 40):
        state: dict = {}
        run(layer, random(first), incremental_state=state)
        for _ in range(3):
            ((saved, *count),) = (list(value.values()) for value in state.values())
            vectors = 1 if name == "average" else WIDTH - 1
            assert saved.numel() == vectors * BATCH * CHANNELS
            assert saved.untyped_storage().nbytes() == 4 * saved.numel()
            assert all(isinstance(number, int) for number in count)
            run(layer, random(1), incremental_state=state)


@pytest.mark.parametrize("name", CONSTANT_STATE)
def test_new_positions_must_be_whole_steps(name: str) -> None:
    if name == "cnn":
        with pytest.raises(ValueError, match="'cnn' writes one word per step, not 2"):
            build(name, "decoder", 2)
        return
    with pytest.raises(ValueError, match="whole steps of 2 positions, not 3"):
        run(build(name, "decoder", 2), random(3), incremental_state={})


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_padding_and_batch_leave_no_trace(name: str, side: str, padding: str) -> None:
    layer = build(name, side)
    x = random(9)
    mask = torch.zeros(BATCH, 9, dtype=torch.bool)
    words = slice(7, None) if padding == "left" else slice(None, 2)
    mask[0] = True
    mask[0, words] = False
    step = 1 if side == "decoder" else 0
    alone = run(layer, x[words, :1], step)
    batch = run(layer, x, step, key_padding_mask=mask)
    torch.testing.assert_close(batch[words, :1], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(batch[:, 1:], run(layer, x[:, 1:], step), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_a_sentence_wholly_behind_padding_stays_finite(name: str, side: str) -> None:
    """Positions whose window holds padding alone are padding themselves, and must not turn into NaN."""
    x = random(20)
    mask = torch.zeros(BATCH, 20, dtype=torch.bool)
    mask[0, :18] = True
    layers = [build(name, side), build(name, side)]
    for layer in layers:
        x = run(layer, x, key_padding_mask=mask)
    assert x.isfinite().all()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_every_parameter_has_a_gradient(name: str, side: str) -> None:
    layer = build(name, side).train()
    run(layer, random(9), 1 if side == "decoder" else 0).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        # A softmax does not change when all keys move alike: the keys' bias has none.
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter_name == "k_proj.bias" or parameter.grad.abs().max() > 1e-6, parameter_name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_half_precision_is_near_float32(name: str, side: str, dtype: torch.dtype) -> None:
    layer, x = build(name, side), random(9)
    expected = run(layer, x)
    half = run(layer.to(dtype), x.to(dtype))
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("name", ["dynamic_conv", "light_conv"])
def test_dropconnect_drops_weights_in_training_only(name: str) -> None:
    layer, x = build(name, "decoder", weight_dropout=0.5), random(9)
    assert torch.equal(run(layer, x), run(layer, x))
    layer.train()
    assert not torch.equal(run(layer, x), run(layer, x))
    off = build(name, "decoder", weight_dropout=0.0, attention_dropout=0.5).train()
    assert torch.equal(run(off, x), run(off, x))


TABLE_6 = {  # of the weights (1, -2, 0.5), by hand
    "softmax": (0.603749, 0.030059, 0.366192),
    "none": (1.0, -2.0, 0.5),
    "sigmoid": (0.731059, 0.119203, 0.622459),
    "tanh": (0.761594, -0.964028, 0.462117),
    "l1": (0.285714, -0.571429, 0.142857),
    "l2": (0.436436, -0.872872, 0.218218),
    "power": (1.0, 4.0, 0.25),
    "abs": (1.0, 2.0, 0.5),
    "abs-l1": (0.285714, 0.571429, 0.142857),
    "abs-l2": (0.436436, 0.872872, 0.218218),
}


@pytest.mark.parametrize("normalization", TABLE_6)
def test_normalizations_of_table_6(normalization: str) -> None:
    layer = build("light_conv", "decoder", decoder_kernel_size_list=[3], weight_normalization=normalization).conv
    with torch.no_grad():
        layer.weight[:] = torch.tensor([1.0, -2.0, 0.5])
    impulse = torch.zeros(3, 1, CHANNELS)
    impulse[0] = 1  # what reaches output i is weight k-1-i
    expected = torch.tensor(TABLE_6[normalization]).flip(0).view(3, 1, 1).expand(3, 1, CHANNELS)
    torch.testing.assert_close(layer(impulse), expected, atol=2e-5, rtol=0)


def test_all_normalizations_are_tested() -> None:
    assert set(TABLE_6) == set(NORMALIZATIONS)


def test_heads_share_kernels_of_neighbouring_channels() -> None:
    layer = build("light_conv", "decoder", decoder_kernel_size_list=[2]).conv
    with torch.no_grad():
        layer.weight[:] = torch.randn(4, 1, 2)
    impulse = torch.zeros(2, 1, CHANNELS)
    impulse[0] = 1
    now, later = layer(impulse).squeeze(1)
    weights = layer.weight.squeeze(1).softmax(dim=-1)
    torch.testing.assert_close(now, weights[:, 1].repeat_interleave(4))
    torch.testing.assert_close(later, weights[:, 0].repeat_interleave(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_attention_heads": 3}, "--decoder-conv-heads 3 .* does not divide the 16 channels"),
        ({"decoder_conv_heads": 5}, "--decoder-conv-heads 5 .* does not divide the 16 channels"),
        ({"decoder_conv_dim": 10}, "--decoder-conv-heads 4 .* does not divide the 10 channels"),
        ({"decoder_layers": 3, "decoder_kernel_size_list": [3, 7]}, r"\[3, 7\] has 2 entries, --decoder-layers is 3"),
        ({"decoder_kernel_size_list": [0]}, r"--decoder-kernel-size-list \[0\] has an entry below 1"),
    ],
)
@pytest.mark.parametrize("name", ["dynamic_conv", "light_conv"])
def test_sizes_that_do_not_fit_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, "decoder", **options)


def test_names_are_registered_once() -> None:
    with pytest.raises(ValueError, match="'dynamic_conv' is taken"):
        register_attention("dynamic_conv")(object)
