"""Packed linear maps against PyTorch's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from amlp_fairseq.inference import packed_linear
from amlp_fairseq.inference.packed_linear import (
    DECODE_DTYPES,
    PackedLinear,
    in_decode_dtype,
    pack,
    with_packed_linears,
)

#: The largest error, as a share of the largest output.
TOLERANCE = {None: 1e-5, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3, "int8": 3e-2}


@pytest.mark.parametrize("decode_dtype", TOLERANCE)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [(1, 1), (4, 2), (3, 17)])
def test_it_is_the_linear_map(decode_dtype: str | None, relu: bool, with_bias: bool, rows: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(50, 33, generator=generator), torch.randn(50, generator=generator)
    x = torch.randn(*rows, 33, generator=generator)
    expected = F.linear(x, weight, bias if with_bias else None)
    expected = expected.relu() if relu else expected
    before = weight.clone()
    found = pack(weight, bias if with_bias else None, decode_dtype, relu)(x)
    assert found.dtype == x.dtype
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= TOLERANCE[decode_dtype] * expected.abs().max()
    assert torch.equal(weight, before)


def test_inputs_may_be_views() -> None:
    weight, x = torch.randn(20, 16), torch.randn(3, 5, 16)
    for decode_dtype in ("float32", "bfloat16", "int8"):
        found = pack(weight, None, decode_dtype)(x.transpose(0, 1))
        torch.testing.assert_close(found, pack(weight, None, decode_dtype)(x.transpose(0, 1).contiguous()))


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
    monkeypatch.setattr(packed_linear, "_WHOLE", ("cpu",))
    whole, left = in_decode_dtype(model, "bfloat16")
    assert left is None
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert in_decode_dtype(model, None) == (model, None)
