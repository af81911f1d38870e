"""One contract for every attention of the registry, for every pattern that it supports."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import field, fields, make_dataclass
from typing import Any, List, Optional  # noqa: UP035

import pytest
import tolerance
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak_memory
from torch import Tensor

from amlp_fairseq.attention import registry
from amlp_fairseq.attention.dynamic_conv import NORMALIZATIONS
from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.attention.registry import (
    ATTENTIONS,
    OPTIONS,
    attention_options,
    build_attention,
    register_attention,
    supporting,
)
from amlp_fairseq.attention.shared_options import InnerDimOptions
from amlp_fairseq.attention.spec import PATTERNS, AttentionSpec
from amlp_fairseq.attention.state import StepContext
from amlp_fairseq.decoding.packed_linear import with_packed_linears

pytestmark = pytest.mark.usefixtures("float64")

WIDTH, CHANNELS, BATCH = 5, 16, 3
STEPS = [1, 2, 3]
#: Those that see k positions only, and of them those that keep no more than k.
WINDOWED = ["cnn", "dynamic_conv", "light_conv", "local"]
#: Numbers that each keeps for one sentence, whatever its length.
CONSTANT_STATE = {
    "average": CHANNELS,
    "abc": 2 * 4 * 3 * (CHANNELS // 4 + 1),
    "amlp_cov": 4 * (3 * (CHANNELS // 4) ** 2 + CHANNELS // 4),
    "cnn": (WIDTH - 1) * CHANNELS,
    "dynamic_conv": (WIDTH - 1) * CHANNELS,
    "light_conv": (WIDTH - 1) * CHANNELS,
    "local": 2 * (WIDTH - 1) * CHANNELS,
    "ssru": CHANNELS,
}


#: The two self-attention patterns are called by where they usually stand.
SELF = {"encoder": "noncausal self", "decoder": "causal self"}
IN_SELF = [(name, side) for side, pattern in SELF.items() for name in supporting(pattern)]
IN_DECODER = [(name, step) for name in supporting("causal self") for step in STEPS if name != "cnn" or step == 1]
IN_CROSS = [(name, pattern) for pattern in ("noncausal cross", "causal cross") for name in supporting(pattern)]


def attention_spec(pattern: str, step: int = 1, **options: Any) -> AttentionSpec:
    """With every attention's own options as they are by default, on small sizes."""
    sizes = {"embed_dim": CHANNELS, "ffn_embed_dim": 32, "attention_heads": 4, "layers": 1, "kernel_size_list": [WIDTH]}
    given = {
        **{name: value for encoder in (True, False) for name, value in vars(attention_options(encoder)()).items()},
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()},
        "activation_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_inner_dim": 3,
        "amlp_ema_beta": 0.5,
        "max_source_positions": 64,
        "max_target_positions": 64,
    }
    side = "encoder" if pattern == "noncausal self" else "decoder"
    return AttentionSpec(Namespace(**{**given, **options}), side, 0, pattern, step)


def build(name: str, pattern: str, step: int = 1, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = ATTENTIONS[name](attention_spec(SELF.get(pattern, pattern), step, **options)).eval()
    if name == "gmlp":  # at first it hardly looks at other positions
        torch.nn.init.normal_(layer.weight)
    return layer


def causal_bias(step: int, start: int, end: int) -> Tensor:
    """Bias that masks, for positions from ``start`` to ``end``, the later positions before ``end``."""
    queries, keys = torch.arange(start, end), torch.arange(end)
    return torch.zeros(end - start, end).masked_fill(keys // step > (queries // step).unsqueeze(1), float("-inf"))


def run(layer: Any, x: Tensor, step: int = 0, start: int = 0, **arguments: Any) -> Tensor:
    """The layer on ``x`` (T, B, C); with ``step``, under the decoder's mask for positions from ``start`` on."""
    if step:
        arguments["attn_mask"] = causal_bias(step, start, start + len(x))
    return layer(x, x, x, **arguments)[0]


def random(length: int, seed: int = 1) -> Tensor:
    return torch.randn(length, BATCH, CHANNELS, generator=torch.Generator().manual_seed(seed))


def reached(out: Tensor, x: Tensor) -> Tensor:
    """Matrix (T, T), True where input j affects output i."""
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


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, width) for name in supporting("noncausal self") for width in (4, 5)[name not in WINDOWED :]],
)
def test_encoder_sees_both_sides(name: str, width: int) -> None:
    x = random(12).requires_grad_()
    distance = torch.arange(12) - torch.arange(12).unsqueeze(1)
    everything = torch.ones(12, 12, dtype=torch.bool)
    expected = (distance >= -((width - 1) // 2)) & (distance <= width // 2) if name in WINDOWED else everything
    assert torch.equal(reached(run(build(name, "encoder", encoder_kernel_size_list=[width]), x), x), expected)


@pytest.mark.parametrize(("name", "step"), IN_DECODER)
@settings(deadline=None, max_examples=12)
@given(width=st.sampled_from([1, 2, 5, 9]), chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_any_chunking_equals_the_whole(name: str, step: int, width: int, chunks: list[int]) -> None:
    layer = build(name, "decoder", step, decoder_kernel_size_list=[width])
    x = random(step * sum(chunks))
    state: dict = {}
    parts, start = [], 0
    for chunk in chunks:
        new = x[start : start + step * chunk]
        parts.append(run(layer, new, step, start, incremental_state=state))
        start += step * chunk
    torch.testing.assert_close(torch.cat(parts), run(layer, x, step))


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
    torch.testing.assert_close(last, run(layer, x[:, order], step)[3 * step :])


@pytest.mark.parametrize(("name", "step"), IN_DECODER)
@settings(deadline=None, max_examples=8)
@given(
    width=st.sampled_from([1, 5]),
    chunks=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_steps_follow_the_beam_whatever_their_size(
    name: str, step: int, width: int, chunks: list[int], seed: int
) -> None:
    """The protocol itself: a state of zeros, steps that update it in place, rows that move between them."""
    layer, generator = (
        build(name, "decoder", step, decoder_kernel_size_list=[width]),
        torch.Generator().manual_seed(seed),
    )
    state = layer.init_state(BATCH, step * sum(chunks), random(1))
    assert all(len(x) == BATCH and not x.any() for x in state.values())
    places = {key: x.data_ptr() for key, x in state.items()}
    words, start = torch.empty(0, BATCH, CHANNELS), 0
    for chunk in chunks:
        end = start + step * chunk
        new = torch.randn(end - start, BATCH, CHANNELS, generator=generator)
        words = torch.cat([words, new])
        context = StepContext(torch.arange(start, end), end, bias=causal_bias(step, start, end))
        out, weights = layer.step(new.transpose(0, 1), state, context)
        torch.testing.assert_close(out.transpose(0, 1), run(layer, words, step)[start:])
        assert weights is None
        assert {key: x.data_ptr() for key, x in state.items()} == places
        order = torch.randint(BATCH, (BATCH,), generator=generator)
        for x in state.values():
            x.copy_(x[order])
        words, start = words[:, order], end


@pytest.mark.parametrize("name", supporting("causal self"))
def test_only_what_is_said_to_grow_depends_on_the_slots(name: str) -> None:
    layer = build(name, "decoder")
    few, many = (layer.init_state(BATCH, slots, random(1).double()) for slots in (3, 50))
    assert set(layer.per_position) <= few.keys() == many.keys()
    for key, x in few.items():
        assert x.dtype in (torch.float32, torch.float64)
        if key in layer.per_position:
            assert (len(x), x.size(-2)) == (BATCH, 3)
            assert many[key].shape == (*x.shape[:-2], 50, x.size(-1))
        else:
            assert many[key].shape == x.shape
    if name in CONSTANT_STATE:
        assert sum(x.numel() for x in few.values()) == BATCH * CONSTANT_STATE[name]


@pytest.mark.parametrize("name", supporting("causal self"))
def test_fairseq_keeps_the_state_and_nothing_else(name: str) -> None:
    layer = build(name, "decoder")
    for first in (1, 40):
        state: dict = {}
        run(layer, random(first), incremental_state=state)
        for n in range(3):
            (saved,) = state.values()
            assert saved["length"] == first + n
            tensors = {key: x for key, x in saved.items() if key != "length"}
            slots = max(x.size(-2) for x in tensors.values()) if layer.per_position else 0
            expected = layer.init_state(BATCH, slots, random(1))
            assert {key: x.shape for key, x in tensors.items()} == {key: x.shape for key, x in expected.items()}
            assert slots <= 2 * max(first + n, 8)
            assert all(x.untyped_storage().nbytes() == x.element_size() * x.numel() for x in tensors.values())
            run(layer, random(1), incremental_state=state)


@pytest.mark.parametrize("name", sorted({name for name, _ in IN_DECODER} - {"softmax"}))
def test_new_positions_must_be_whole_steps(name: str) -> None:
    if name == "cnn":
        with pytest.raises(ValueError, match="'cnn' writes one word per step, not 2"):
            build(name, "decoder", 2)
        return
    with pytest.raises(ValueError, match="whole steps of 2 positions, not 3"):
        run(build(name, "decoder", 2), random(3), incremental_state={})


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(("name", "side"), IN_SELF)
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
    torch.testing.assert_close(batch[words, :1], alone)
    torch.testing.assert_close(batch[:, 1:], run(layer, x[:, 1:], step))


@pytest.mark.parametrize(("name", "side"), IN_SELF)
def test_a_sentence_wholly_behind_padding_stays_finite(name: str, side: str) -> None:
    """Positions whose window holds padding alone are padding themselves, and must not turn into NaN."""
    x = random(20)
    mask = torch.zeros(BATCH, 20, dtype=torch.bool)
    mask[0, :18] = True
    layers = [build(name, side), build(name, side)]
    for layer in layers:
        x = run(layer, x, key_padding_mask=mask)
    assert x.isfinite().all()


@pytest.mark.parametrize(("name", "side"), IN_SELF)
def test_every_parameter_has_a_gradient(name: str, side: str) -> None:
    layer = build(name, side).train()
    run(layer, random(9), 1 if side == "decoder" else 0).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        # A softmax does not change when all keys move alike: the keys' bias has none.
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter_name == "k_proj.bias" or parameter.grad.abs().max() > 1e-6, parameter_name


@pytest.mark.parametrize(
    ("name", "side", "dtype"),
    [(*place, (torch.float16, torch.bfloat16)[number % 2]) for number, place in enumerate(IN_SELF)],
)
def test_half_precision_is_near_float32(name: str, side: str, dtype: torch.dtype) -> None:
    layer, x = build(name, side), random(9)
    expected = run(layer, x)
    half = run(layer.to(dtype), x.to(dtype))
    assert half.dtype == dtype
    near = 16 * tolerance.UNIT[dtype]  # so many roundings one after the other, of numbers about 1
    torch.testing.assert_close(half.double(), expected, atol=near, rtol=near)


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, side in IN_SELF if name != "gmlp"])
def test_long_sentences_under_autocast_are_near_float32(name: str, side: str) -> None:
    """As under --amp; a thousand summands of float16 would overflow."""
    layer, x = build(name, side), random(1000)
    expected = run(layer, x, side == "decoder")
    with torch.autocast("cpu", dtype=torch.float16):
        half = run(layer, x, side == "decoder")
    # The mean: where all of cosformer's features of a query are nearly 0, its output is a ratio of two roundings.
    assert (half.float() - expected).abs().mean() < 0.01 * expected.abs().mean()


LINEAR = ["abc", "amlp_cov", "amlp_pquery", "cosformer", "linear", "local", "performer", "ssru", "xca"]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [(name, pattern) for pattern in PATTERNS for name in supporting(pattern) if name in LINEAR],
)
def test_memory_is_linear_in_the_length(name: str, pattern: str) -> None:
    """Forwards and backwards; nothing of size n² or n·m."""
    layer = build(name, pattern).train()

    def peak(n: int) -> int:
        x, source = (torch.randn(n, 1, CHANNELS, requires_grad=True) for _ in range(2))
        key = source if "cross" in pattern else x
        return peak_memory(lambda: layer(x, key, key)[0].sum().backward())

    peak(64)
    less, more = peak(2048), peak(4096)
    assert 2048 * CHANNELS * 4 < less < more < 2.1 * less
    assert more < 4096 * 4096 * 4 / 2


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
    torch.testing.assert_close(layer(impulse), expected, atol=5e-7 + 1e-5, rtol=0)  # 6 decimals; what is added to norms


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


def source(length: int = 7, seed: int = 4) -> tuple[Tensor, Tensor]:
    """Encoder output (S, B, C), padded on the left in the first sentence and on the right in the second."""
    mask = torch.zeros(BATCH, length, dtype=torch.bool)
    mask[0, :3] = mask[1, 5:] = True
    return random(length, seed), mask


@pytest.mark.parametrize(("name", "pattern"), IN_CROSS)
def test_cross_attention_sees_the_source_and_not_its_padding(name: str, pattern: str) -> None:
    layer, x = build(name, pattern, attention_window=9), random(6)
    memory, mask = source()
    memory.requires_grad_()
    out, _ = layer(x, memory, memory, key_padding_mask=mask)
    (grad,) = torch.autograd.grad((out @ torch.randn(CHANNELS)).sum(), memory)
    reached = grad.ne(0).any(dim=2).T
    assert torch.equal(reached, ~mask)
    changed = memory.detach().masked_fill(mask.T.unsqueeze(2), 1e4)
    torch.testing.assert_close(layer(x, changed, changed, key_padding_mask=mask)[0], out)


@pytest.mark.parametrize(("name", "pattern"), IN_CROSS)
def test_cross_attention_of_a_sentence_does_not_depend_on_the_batch(name: str, pattern: str) -> None:
    layer, x = build(name, pattern), random(6)
    memory, mask = source()
    target_mask = torch.zeros(BATCH, 6, dtype=torch.bool)
    if pattern == "noncausal cross":
        target_mask[0, 4:] = target_mask[1, :2] = True
    out, _ = layer(x, memory, memory, key_padding_mask=mask, query_padding_mask=target_mask)
    for i in range(BATCH):
        alone, words = memory[~mask[i], i : i + 1], ~target_mask[i]
        expected, _ = layer(x[words, i : i + 1], alone, alone)
        torch.testing.assert_close(out[words, i : i + 1], expected)


@pytest.mark.parametrize(("name", "pattern"), IN_CROSS)
def test_every_parameter_of_cross_attention_has_a_gradient(name: str, pattern: str) -> None:
    layer = build(name, pattern).train()
    memory, mask = source()
    layer(random(6), memory, memory, key_padding_mask=mask)[0].square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter_name == "k_proj.bias" or parameter.grad.abs().max() > 1e-6, parameter_name


@pytest.mark.parametrize(
    ("name", "pattern", "dtype"),
    [(*place, (torch.bfloat16, torch.float16)[number % 2]) for number, place in enumerate(IN_CROSS)],
)
def test_half_precision_cross_attention_is_near_float32(name: str, pattern: str, dtype: torch.dtype) -> None:
    layer, x = build(name, pattern), random(6)
    memory, mask = source()
    expected, _ = layer(x, memory, memory, key_padding_mask=mask)
    half = memory.to(dtype)
    out, _ = layer.to(dtype)(x.to(dtype), half, half, key_padding_mask=mask)
    assert out.dtype == dtype
    near = 16 * tolerance.UNIT[dtype]  # as above
    torch.testing.assert_close(out.double(), expected, atol=near, rtol=near)


@pytest.mark.parametrize("name", supporting("causal cross"))
def test_causal_cross_attention_does_not_see_later_queries(name: str) -> None:
    layer, x = build(name, "causal cross"), random(8)
    memory, mask = source()
    out, _ = layer(x, memory, memory, key_padding_mask=mask)
    first, _ = layer(x[:3], memory, memory, key_padding_mask=mask)
    torch.testing.assert_close(out[:3], first)


@pytest.mark.parametrize("name", supporting("causal cross"))
def test_cross_attention_keeps_the_source_and_follows_the_beam(name: str) -> None:
    layer, x, order = build(name, "causal cross"), random(8), torch.tensor([2, 0, 0])
    memory, mask = source()
    state: dict = {}
    whole, _ = layer(x, memory, memory, key_padding_mask=mask)
    for part in (slice(0, 1), slice(1, 5)):
        # Once it is known, the source is not looked at again.
        seen = memory if part.start == 0 else torch.full_like(memory, torch.nan)
        out, _ = layer(x[part], seen, seen, key_padding_mask=mask, incremental_state=state, static_kv=True)
        torch.testing.assert_close(out, whole[part])
    layer.reorder_incremental_state(state, order)
    last, _ = layer(x[5:, order], memory, memory, key_padding_mask=mask, incremental_state=state, static_kv=True)
    torch.testing.assert_close(last, whole[5:, order])


@pytest.mark.parametrize(
    "name", sorted(name for name, cls in ATTENTIONS.items() if issubclass(cls, MultiHeadAttention))
)
def test_attentions_have_one_product_for_what_reads_the_same(name: str) -> None:
    for pattern in ATTENTIONS[name].patterns:
        side = next((side for side, own in SELF.items() if own == pattern), pattern)
        layer = build(name, side)
        packed = with_packed_linears(layer, None)
        expected = {"q", "kv", "out"} if "cross" in pattern else {"qkv", "out"}
        assert (packed.packed.keys(), layer.packed) == (expected, {})
        x, memory = random(6), random(7, seed=4)
        key = memory if "cross" in pattern else x
        mask = torch.zeros(BATCH, len(key), dtype=torch.bool)
        mask[0, 4:] = True
        with torch.no_grad():
            for key_padding_mask in (None, mask):
                found, _ = packed(x, key, key, key_padding_mask)
                torch.testing.assert_close(found, layer(x, key, key, key_padding_mask)[0])
        layer.dropout_module.apply_during_inference = True  # as --retain-dropout does
        assert with_packed_linears(layer, None).packed == {}


def test_a_pattern_refuses_what_cannot_do_it() -> None:
    for pattern in PATTERNS:
        able = supporting(pattern)
        assert able, pattern
        kind = pattern.split()[1]
        for name in ATTENTIONS:
            spec = attention_spec(pattern)
            setattr(spec.options, f"{spec.side}_{kind}_attention_type", name)
            if name in able:
                build_attention(spec)
                continue
            flag = f"--{spec.side}-{kind}-attention-type {name}: it cannot be {pattern} attention"
            with pytest.raises(ValueError, match=f"{flag}; choose one of {', '.join(able)}"):
                build_attention(spec)


@pytest.mark.parametrize(
    ("name", "pattern", "step", "options", "message"),
    [
        ("softmax", "noncausal self", 1, {"encoder_attention_heads": 3}, "--encoder-attention-heads 3 does not divide"),
        ("local", "noncausal self", 1, {"attention_window": -1}, "--attention-window -1 must be at least 1"),
        ("local", "noncausal self", 1, {"attention_window": 0}, "--attention-window 0 must be at least 1"),
        *(
            (name, "noncausal self", 1, {"attention_inner_dim": 0}, "--attention-inner-dim 0 must be at least 1")
            for name in ("abc", "amlp_cov", "amlp_pquery", "performer")
        ),
        ("dynamic_conv", "noncausal self", 1, {"encoder_conv_dim": 0}, "--encoder-conv-dim 0 must be at least 1"),
        ("light_conv", "causal self", 1, {"decoder_conv_heads": 0}, "--decoder-conv-heads 0 must be at least 1"),
        ("local", "causal cross", 2, {}, "--decoder-cross-attention-type local .* cannot write 2 words per step"),
        (
            "local_p",
            "causal cross",
            1,
            {"attention_window": 2},
            "--attention-window 2: .* must have at least 3 positions",
        ),
        (
            "local_p",
            "causal cross",
            1,
            {"decoder_kernel_size_list": [1]},
            "--decoder-kernel-size-list 1: .* at least 3",
        ),
        ("amlp_pquery", "noncausal self", 1, {"amlp_ema_beta": 1.0}, "--amlp-ema-beta 1.0 must be"),
        ("amlp_cov", "noncausal self", 1, {"amlp_scale": "all"}, "--amlp-scale all is not for AMLPCov: sqrt, none"),
    ],
)
def test_options_that_do_not_fit_are_named(
    name: str, pattern: str, step: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, pattern, step, **options)


def test_a_gmlp_refuses_sentences_longer_than_its_weights() -> None:
    with pytest.raises(ValueError, match=r"weights for 64 positions \(--max-source-positions\), not for 65"):
        run(build("gmlp", "encoder"), random(65))


def test_names_are_registered_once() -> None:
    with pytest.raises(ValueError, match="'dynamic_conv' is taken"):
        register_attention("dynamic_conv")(object)


def test_options_are_collected_once_and_shared_through_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ATTENTIONS", dict(ATTENTIONS))
    monkeypatch.setattr(registry, "OPTIONS", dict(OPTIONS))
    widths = field(default=3, metadata={"help": "width of 'mine'"})
    sizes = field(default_factory=lambda: [1, 2])
    mine = [("mine_width", Optional[int], widths), ("encoder_mine", List[int], sizes)]  # noqa: UP006, UP045
    register_attention("mine", options=make_dataclass("Mine", mine, bases=(InnerDimOptions,)))(type("Mine", (), {}))
    clash = make_dataclass("Clash", [("attention_inner_dim", int, field(default=8))])
    with pytest.raises(ValueError, match="the attention option 'attention_inner_dim' is taken"):
        register_attention("other", options=clash)(object)
    decoder, encoder = attention_options(encoder=False), attention_options(encoder=True)
    found = {option.name: option for option in fields(decoder)}
    assert (found["mine_width"].type, found["mine_width"].metadata) == (Optional[int], widths.metadata)  # noqa: UP045
    assert (decoder().mine_width, decoder().attention_inner_dim, encoder().encoder_mine) == (3, 16, [1, 2])
    assert not {"encoder_mine", "encoder_glu"} & found.keys()


@pytest.mark.parametrize("name", ["light_conv", "dynamic_conv", "amlp_cov", "xca"])
def test_the_backend_of_operators_is_an_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    own, other = (run(build(name, "encoder", operator_backend=backend), random(4)) for backend in ("auto", "torch"))
    assert torch.equal(own, other)
    with pytest.raises(RuntimeError, match="backend 'triton' cannot run: the tensors are on cpu"):
        run(build(name, "encoder", operator_backend="triton"), random(4))
