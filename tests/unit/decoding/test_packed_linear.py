"""Packed linear maps against PyTorch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tolerance
import torch
import torch.nn.functional as F
import toy
from pairwise import pairwise
from torch import nn

from amlp_fairseq.decoding import packed_linear
from amlp_fairseq.decoding.packed_linear import (
    DECODE_DTYPES,
    PackedLinear,
    in_decode_dtype,
    pack,
    with_packed_linears,
)

TYPES = [None, "float32", "bfloat16", "float16", "int8"]


@pytest.mark.parametrize(
    ("decode_dtype", "rows", "relu", "with_bias"),
    pairwise(TYPES, [(1, 1), (4, 2), (3, 17)], [False, True], [False, True]),
)
def test_it_is_the_linear_map(decode_dtype: str | None, relu: bool, with_bias: bool, rows: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(50, 33, generator=generator), torch.randn(50, generator=generator)
    x = torch.randn(*rows, 33, generator=generator)
    added = bias if with_bias else None
    expected = F.linear(x.double(), weight.double(), bias.double() if with_bias else None)
    expected = expected.relu() if relu else expected
    before = weight.clone()
    actual = pack(weight, added, decode_dtype, relu)(x)
    assert actual.dtype == x.dtype
    assert actual.shape == expected.shape
    bound = tolerance.of_product(x, weight, added, decode_dtype, toy.VNNI)
    assert ((actual - expected).abs() <= bound).all()
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    ("inputs", "outputs", "decode_dtype"),
    pairwise([1, 7, 64], [1, 16, 17, 63, 64, 65, 144], ["float32", "int8"]),
)
def test_any_number_of_rows_inputs_and_outputs(inputs: int, outputs: int, decode_dtype: str) -> None:
    """Against float64; a product is split into tiles, the last of them smaller."""
    torch.manual_seed(7)
    weight, bias, every = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(101, inputs)
    run = pack(weight, bias, decode_dtype)
    for rows in (*range(1, 14), 48, 49, 101):
        x = every[:rows]
        expected = F.linear(x.double(), weight.double(), bias.double())
        assert ((run(x) - expected).abs() <= tolerance.of_product(x, weight, bias, decode_dtype, toy.VNNI)).all()


def test_no_rows() -> None:
    for decode_dtype in ("float32", "int8"):
        assert pack(torch.randn(20, 16), None, decode_dtype)(torch.empty(0, 3, 16)).shape == (0, 3, 20)


def test_inputs_may_be_views() -> None:
    weight, x = torch.randn(20, 16), torch.randn(3, 5, 16)
    for decode_dtype in ("float32", "bfloat16", "int8"):
        actual = pack(weight, None, decode_dtype)(x.transpose(0, 1))
        torch.testing.assert_close(actual, pack(weight, None, decode_dtype)(x.transpose(0, 1).contiguous()))


@pytest.mark.parametrize(
    ("size", "outputs", "with_bias", "relu"),
    [
        (5, 33, True, False),
        (33, 5, False, True),
        (512, 512, True, True),
        (512, 32768, False, False),
        (2048, 512, True, False),
    ],
)
def test_int8_rows_do_not_depend_on_the_batch(size: int, outputs: int, with_bias: bool, relu: bool) -> None:
    torch.manual_seed(3)
    x = torch.randn(64, size) * torch.logspace(-3, 3, 64).unsqueeze(1)
    x = x.relu() if size == 2048 else x
    run = pack(
        torch.randn(outputs, size), torch.randn(outputs) if with_bias else None, "int8", relu, nonnegative=size == 2048
    )
    expected = run(x)
    for rows in (1, 2, 3, 8, 31):
        for position in (0, 17, 64 - rows):
            assert torch.equal(run(x[position : position + rows]), expected[position : position + rows])
    order = torch.randperm(64)
    assert torch.equal(run(x[order].view(16, 4, size)), expected[order].view(16, 4, outputs))


@pytest.mark.parametrize("nonnegative", [False, True])
def test_int8_rows_of_zeros_give_the_bias_and_those_without_a_number_stay_alone(nonnegative: bool) -> None:
    torch.manual_seed(4)
    bias, x = torch.randn(20), torch.rand(6, 33)
    run = pack(torch.randn(20, 33), bias, "int8", nonnegative=nonnegative)
    expected = run(x)
    x[1], x[3, 5], x[4, 6] = 0, torch.nan, torch.inf
    actual = run(x)
    assert torch.equal(actual[1], bias)
    assert not actual[3:5].isfinite().any()
    assert torch.equal(actual[[0, 2, 5]], expected[[0, 2, 5]])


@pytest.mark.parametrize("nonnegative", [False, True])
def test_int8_errors_are_small_beside_the_outputs_of_their_own_row(nonnegative: bool) -> None:
    """A call used to have one scale, with which small rows beside large ones were all lost."""
    torch.manual_seed(5)
    weight, x = torch.randn(256, 256), torch.randn(32, 256) * torch.logspace(-6, 6, 32).unsqueeze(1)
    x = x.relu() if nonnegative else x
    exact = x.double() @ weight.double().t()
    error = (pack(weight, None, "int8", nonnegative=nonnegative)(x) - exact).abs().mean(dim=1)
    assert (error <= (0.015 if toy.VNNI else 0.025) * exact.abs().mean(dim=1)).all()


def test_int8_activations_that_are_not_negative_have_finer_steps() -> None:
    torch.manual_seed(6)
    weight, x = torch.randint(-127, 128, (64, 256)).float(), torch.rand(16, 256)
    weight[:, 0] = 127  # so that the weights are exact

    def error(nonnegative: bool) -> float:
        actual = pack(weight, None, "int8", nonnegative=nonnegative)(x)
        return float((actual - x.double() @ weight.double().t()).abs().mean())

    assert error(True) == pytest.approx(0.5 * error(False), rel=0.1)


def test_int8_weights_have_a_scale_per_output() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 64) * torch.tensor([[1e-3], [1.0], [1e3], [0.0]])
    x = torch.randn(32, 64)
    error = (pack(weight, None, "int8")(x) - x @ weight.t()).abs().amax(dim=0)
    assert (error[:3] <= 0.03 * (x @ weight.t()).abs().amax(dim=0)[:3]).all()
    assert error[3] == 0


def test_modules_are_copied_and_parameters_shared() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.ModuleDict({"a": nn.Linear(6, 3)})["a"], nn.LayerNorm(3))
    packed = with_packed_linears(model, None)
    assert [type(part) for part in model] == [nn.Linear, nn.ReLU, nn.Linear, nn.LayerNorm]
    assert [type(part) for part in packed] == [PackedLinear, nn.ReLU, PackedLinear, nn.LayerNorm]
    assert {id(value) for value in packed.parameters()} == {id(value) for value in model.parameters()}
    x = torch.randn(2, 6)
    torch.testing.assert_close(packed(x), model(x))


@pytest.mark.parametrize(
    ("activation", "norm", "expected"), [(F.relu, None, True), (F.gelu, None, False), (F.relu, nn.LayerNorm(4), False)]
)
def test_what_reads_a_relu_is_told(activation: Any, norm: nn.Module | None, expected: bool) -> None:
    layer: Any = nn.Module()
    layer.fc1, layer.activation_fn, layer.ffn_layernorm, layer.fc2 = nn.Linear(4, 4), activation, norm, nn.Linear(4, 4)
    packed = with_packed_linears(nn.ModuleList([layer]), "int8")[0]
    assert [packed.fc1.nonnegative, packed.fc2.nonnegative] == [False, expected]


@pytest.mark.parametrize(("decode_dtype", "device"), [("float16", "cpu"), ("int8", "cuda"), ("int8", "mps")])
def test_types_that_a_device_is_not_made_for_are_named(decode_dtype: str, device: str) -> None:
    parameter = SimpleNamespace(device=torch.device(device))
    with pytest.raises(ValueError, match=f"--decode-dtype {decode_dtype} is not for {device}: choose one of float32"):
        in_decode_dtype(SimpleNamespace(parameters=lambda: iter([parameter])), decode_dtype)
    assert decode_dtype in DECODE_DTYPES


def test_a_whole_model_of_another_type_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA."""
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    assert in_decode_dtype(model, "bfloat16") == (model, "bfloat16")
    monkeypatch.setattr(packed_linear, "_CONVERT_WHOLE", ("cpu",))
    whole, left = in_decode_dtype(model, "bfloat16")
    assert left is None
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert in_decode_dtype(model, None) == (model, None)
