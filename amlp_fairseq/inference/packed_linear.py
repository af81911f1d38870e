"""Linear maps whose weights are laid out, or quantised, for the few rows of a decoding step.

PyTorch's ``linear`` leaves a CPU's weights as they are trained. For a few rows MKL then reads them at half the speed of
the memory and with one thread; oneDNN's blocked layout is read at full speed by all threads, and bfloat16 and int8
weights are half and a quarter of the bytes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]

#: What ``--decode-dtype`` may be.
DECODE_DTYPES = ("float32", "bfloat16", "float16", "int8")
#: What a device has fast arithmetic for.
_ABLE = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "bfloat16", "float16")}


#: Devices on which a model is of this type as a whole, as with ``--fp16``: every conversion is a launch. On others only
#: its linear maps are; what is between them keeps its own type.
_WHOLE = ("cuda",)


def in_decode_dtype(model: Any, decode_dtype: str | None) -> tuple[Any, str | None]:
    """The model, or where the device wants it a copy in this type, and the type that is left for its linear maps.

    Raises:
        ValueError: where the device has no fast arithmetic of this type.
    """
    if decode_dtype is None:
        return model, None
    device = next(model.parameters()).device.type
    able = _ABLE.get(device, ("float32",))
    if decode_dtype not in able:
        raise ValueError(f"--decode-dtype {decode_dtype} is not for {device}: choose one of {', '.join(able)}")
    if device in _WHOLE:
        return copy.deepcopy(model).to(getattr(torch, decode_dtype)), None
    return model, decode_dtype


def pack(weight: Tensor, bias: Tensor | None, decode_dtype: str | None, relu: bool = False) -> Map:
    """The map x (…, in) → x Wᵀ + b (…, out), and max(0, ·) of it with ``relu``; outputs have the type of x.

    Args:
        weight: W (out, in).
        bias: b (out,).
        decode_dtype: one of ``DECODE_DTYPES``; int8 weights have a scale per output, and the activations one per call.
            None: that of the weights.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if decode_dtype == "int8":
        return _int8(weight.float(), None if bias is None else bias.float(), relu)
    dtype = weight.dtype if decode_dtype is None else getattr(torch, decode_dtype)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if (
        weight.device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()
    ):
        return _one_dnn(weight, bias, relu)

    def run(x: Tensor) -> Tensor:
        out = F.linear(x.to(dtype), weight, bias)
        return (out.relu() if relu else out).to(x.dtype)

    return run


class PackedLinear(nn.Linear):
    """A ``nn.Linear`` with the parameters of another, packed when it is first used."""

    def __init__(self, linear: nn.Linear, decode_dtype: str | None) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias, self.decode_dtype = linear.weight, linear.bias, decode_dtype
        self.run: Map | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.run is None:
            self.run = pack(self.weight, self.bias, self.decode_dtype)
        return self.run(x)


def with_packed_linears(module: nn.Module, decode_dtype: str | None) -> Any:
    """The same module with every ``nn.Linear`` in it packed; all else is shared, and ``module`` stays as it is."""
    if type(module) is nn.Linear:
        return PackedLinear(module, decode_dtype)
    result = copy.copy(module)
    result._modules = {
        name: child if child is None else with_packed_linears(child, decode_dtype)
        for name, child in module._modules.items()
    }
    return result


def _one_dnn(weight: Tensor, bias: Tensor | None, relu: bool) -> Map:
    packed, dtype = torch.ops.mkldnn._reorder_linear_weight(weight, None), weight.dtype
    operator, name = torch.ops.mkldnn._linear_pointwise.default, "relu" if relu else "none"

    def run(x: Tensor) -> Tensor:
        if x.dtype == dtype:
            return operator(x, packed, bias, name, [], "")
        return operator(x.to(dtype), packed, bias, name, [], "").to(x.dtype)

    return run


def _int8(weight: Tensor, bias: Tensor | None, relu: bool) -> Map:
    scales = weight.abs().amax(dim=1).clamp(min=1e-8).double() / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():  # newer ways to quantise have no operator that is as fast for few rows
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        quantised = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantised, bias)
    # ``_op``: what is around it looks through all arguments for what a trace has put in place of the packed weights.
    operator = (torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic).default._op
    seven_bits = not torch.cpu._is_vnni_supported()  # without these instructions sums of 8 bit products overflow

    def run(x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return operator(x, packed, seven_bits)
        return operator(x.float(), packed, seven_bits).to(x.dtype)

    return run
