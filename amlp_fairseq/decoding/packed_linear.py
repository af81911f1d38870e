"""Linear maps with weights that are laid out, or quantised, for the few rows of a decoding step.

On a CPU, PyTorch's ``linear`` uses the layout in which the weights were trained. For a few rows MKL then reads them
with one thread and at half the memory bandwidth; oneDNN's blocked layout is read by all threads at full bandwidth, and
bfloat16 weights take half of the bytes, and int8 weights, whose products are the engine's, a quarter.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.common.host_memory import keep_few_products
from amlp_fairseq.engine.isa import fastest

Map = Callable[[Tensor], Tensor]

Module = TypeVar("Module", bound=nn.Module)

#: Products with fewer float32 weights use ``linear``: they take less time than a call of oneDNN (12 µs).
SMALL = 1 << 17

#: Values of ``--decode-dtype``.
DECODE_DTYPES = ("float32", "bfloat16", "float16", "int8")
#: The types with fast arithmetic, by kind of device.
_FAST_DTYPES = {"cpu": ("float32", "bfloat16", "int8"), "cuda": ("float32", "bfloat16", "float16")}


#: Devices on which the whole model is converted, as with ``--fp16``, because every conversion between layers would be a
#: kernel launch. On other devices only linear maps are converted.
_CONVERT_WHOLE = ("cuda",)


def fast_dtypes(device: str) -> tuple[str, ...]:
    """The types with fast arithmetic on a kind of device (``cpu``, ``cuda``, …)."""
    return _FAST_DTYPES.get(device, ("float32",))


def in_decode_dtype(model: Module, decode_dtype: str | None) -> tuple[Module, str | None]:
    """The model, or a copy converted as a whole (see ``_CONVERT_WHOLE``), and the type to which its linear maps must
    still be converted, if any.

    Raises:
        ValueError: if the device has no fast arithmetic of this type.
    """
    if decode_dtype is None:
        return model, None
    device = next(model.parameters()).device.type
    supported = fast_dtypes(device)
    if decode_dtype not in supported:
        raise ValueError(f"--decode-dtype {decode_dtype} is not for {device}: choose one of {', '.join(supported)}")
    if device in _CONVERT_WHOLE:
        return copy.deepcopy(model).to(getattr(torch, decode_dtype)), None
    return model, decode_dtype


def pack(
    weight: Tensor, bias: Tensor | None, decode_dtype: str | None, relu: bool = False, nonnegative: bool = False
) -> Map:
    """The map x (…, in) → x Wᵀ + b (…, out), or max(0, x Wᵀ + b) with ``relu``; outputs have the type of x.

    Args:
        weight: W (out, in).
        bias: b (out,).
        decode_dtype: one of ``DECODE_DTYPES``; None: the weights' type. int8 weights have a scale per output and
            activations one per row, so that a row's result does not depend on the other rows, bit for bit.
        relu: see above.
        nonnegative: True if all x ≥ 0, which halves the step size of int8 activations.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if decode_dtype == "int8":
        return Int8Map(weight.float(), None if bias is None else bias.float(), relu, nonnegative)
    dtype = weight.dtype if decode_dtype is None else getattr(torch, decode_dtype)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if weight.device.type == "cpu" and dtype in _one_dnn_dtypes():
        keep_few_products()
        return OneDnnMap(weight, bias, relu)

    def apply(x: Tensor) -> Tensor:
        out = F.linear(x.to(dtype), weight, bias)
        return (out.relu() if relu else out).to(x.dtype)

    return apply


def _one_dnn_dtypes() -> tuple[torch.dtype, ...]:
    """The types that oneDNN multiplies on this processor: bfloat16 needs AVX-512."""
    if not torch.backends.mkldnn.is_available():
        return ()
    return (torch.float32, torch.bfloat16) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else (torch.float32,)


class PackedLinear(nn.Linear):
    """A ``nn.Linear`` with the parameters of another one, packed at its first use."""

    def __init__(self, linear: nn.Linear, decode_dtype: str | None, nonnegative: bool) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias, self.decode_dtype = linear.weight, linear.bias, decode_dtype
        self.nonnegative = nonnegative
        self.run: Map | None = None

    def packed(self) -> Map:
        """The packed map."""
        if self.run is None:
            self.run = pack(self.weight, self.bias, self.decode_dtype, nonnegative=self.nonnegative)
        return self.run

    def forward(self, x: Tensor) -> Tensor:
        return self.packed()(x)


def with_packed_linears(module: nn.Module, decode_dtype: str | None, nonnegative: bool = False) -> Any:
    """A copy of the module in which every ``nn.Linear`` is packed; shares the rest, and does not change ``module``.

    A ``MultiHeadAttention`` also packs several of its linear maps as one.
    """
    if type(module) is nn.Linear:
        return PackedLinear(module, decode_dtype, nonnegative)
    result = copy.copy(module)
    # In fairseq's layers fc2 reads the output of activation_fn, unless there is an ffn_layernorm between them.
    relu = getattr(module, "activation_fn", None) is F.relu and getattr(module, "ffn_layernorm", None) is None
    result._modules = {
        name: child if child is None else with_packed_linears(child, decode_dtype, relu and name == "fc2")
        for name, child in module._modules.items()
    }
    if isinstance(result, MultiHeadAttention):
        result.pack_projections(functools.partial(pack, decode_dtype=decode_dtype))
    return result


class OneDnnMap:
    """A map on a CPU in float32 or bfloat16, see ``one_dnn_product``.

    Attributes:
        packed: W in oneDNN's layout; empty if there are few weights.
        plain: Wᵀ (in, out) of few weights; otherwise empty. The choice must not depend on the batch size, or a row's
            result would.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool) -> None:
        self.bias, self.relu, self.dtype = bias, relu, weight.dtype
        self.packed = self.plain = weight.new_empty(0)
        if weight.dtype == torch.float32 and weight.numel() < SMALL:
            self.plain = weight.t()
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == self.dtype:
            return one_dnn_product(x, self.packed, self.plain, self.bias, self.relu)
        return one_dnn_product(x.to(self.dtype), self.packed, self.plain, self.bias, self.relu).to(x.dtype)


def one_dnn_product(x: Tensor, packed: Tensor, plain: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """The map of a ``OneDnnMap``, for x in the type of the weights."""
    if plain.numel() > 0:
        out = torch.addmm(bias, x, plain) if bias is not None and x.dim() == 2 else F.linear(x, plain.t(), bias)
        return out.relu_() if relu else out
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "relu" if relu else "none", [], "")


class Int8Map:
    """A map with int8 weights: the engine's, see ``engine/src/linear.h``. What it cannot decode is rounded as what
    it can."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool, nonnegative: bool) -> None:
        added = weight.new_zeros(len(weight)) if bias is None else bias
        self.linear = fastest().int8_linear(weight.numpy(), added.numpy(), nonnegative)
        self.outputs, self.relu = len(weight), relu

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.detach().float().contiguous().numpy()
        out = torch.from_numpy(self.linear.product(rows, self.relu, torch.get_num_threads()))
        return out.view(*x.shape[:-1], self.outputs).to(x.dtype)
