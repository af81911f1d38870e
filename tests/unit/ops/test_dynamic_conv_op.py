"""The operators dynamic_conv and light_conv: every implementation against naive.py, and that against the equation."""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import fresh
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from launched import record_launches
from memory import peak_memory
from pairwise import pairwise
from torch import Tensor

from amlp_fairseq.common import versions
from amlp_fairseq.ops import backend as backends
from amlp_fairseq.ops.dynamic_conv import dynamic_conv, kernels, light_conv, op
from amlp_fairseq.ops.dynamic_conv.cases import CASES, TOLERANCES, Case, errors, tf32x3_error, tolerances
from amlp_fairseq.ops.dynamic_conv.drop_connect import drop_threshold, keep_mask
from amlp_fairseq.ops.dynamic_conv.naive import dynamic_conv_naive, light_conv_naive
from amlp_fairseq.ops.dynamic_conv.shared import new_output
from amlp_fairseq.ops.launches import precision

# Backend and device. Without a GPU, Triton's kernels run in its interpreter: see conftest.py.
RUNS = [("torch", "cpu"), *([("triton", "cpu")] if backends.interpreting() else [])]
if torch.cuda.is_available():
    RUNS += [("torch", "cuda"), ("triton", "cuda")]
on_every_backend = pytest.mark.parametrize(("backend", "device"), RUNS, ids=["-".join(run) for run in RUNS])
OPTIONS = {"plain": (False, 0.0), "softmax": (True, 0.0), "dropout": (False, 0.3), "softmax+dropout": (True, 0.3)}
SEED = torch.tensor([1234])
#: Those in which the sums of float32 and of half precision are longest, and one whose windows are of whole steps.
FEW_CASES = ["causal", "kernel of 63, one sentence", "steps of 3, the last not whole"]


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.usefixtures("poisoned")
def test_fresh_memory_is_poisoned() -> None:
    x = torch.zeros(2, 3, 4)
    for fresh_memory in (torch.empty(3), torch.empty_like(x), x.new_empty(2), new_output(x, 5)):
        assert bool(fresh_memory.isnan().all())
    assert torch.empty(2, dtype=torch.int64).dtype == torch.int64


# --- Every implementation against naive.py in float64


def parity_runs() -> Iterator[Any]:
    """Every case in the most exact type of each implementation, and a type changes loads and stores only: a few."""
    kinds = {"dynamic": False, "light": True}
    exact = {run: torch.float64 if run[0] == "torch" else torch.float32 for run in RUNS}
    others = [(run, dtype) for run in RUNS for dtype in TOLERANCES if dtype not in (exact[run], torch.float64)]
    chosen = [
        *((run, exact[run], *rest) for run, *rest in pairwise(RUNS, list(CASES), list(kinds), list(OPTIONS))),
        *((run, dtype, *rest) for (run, dtype), *rest in pairwise(others, FEW_CASES, list(kinds), list(OPTIONS))),
    ]
    for (backend, device), dtype, case, kind, option in chosen:
        name = f"{backend}-{device}-{case}-{str(dtype).removeprefix('torch.')}-{kind}-{option}"
        yield pytest.param(case, dtype, backend, device, kinds[kind], *OPTIONS[option], id=name)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("case", "dtype", "backend", "device", "shared", "softmax", "dropout"), list(parity_runs()))
def test_output_and_gradients_agree_with_the_naive_operator(
    case: str, dtype: torch.dtype, backend: str, device: str, shared: bool, softmax: bool, dropout: float
) -> None:
    options: dict[str, Any] = {"shared": shared, "softmax": softmax, "dropout": dropout}
    found = errors(CASES[case], dtype, backend, device, **options)
    allowed = tolerances(CASES[case], dtype, device, **options)
    assert set(found) == set(allowed) == {"output", "gradient of x", "gradient of weight"}
    # Not max(…) <= …, which lets a NaN pass.
    assert all(found[name] <= allowed[name] for name in found), (found, allowed)


@on_every_backend
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("shared", "k", "step", "padding_l", "length"),
    [(False, 33, 3, 30, 64), (True, 31, 4, 29, 64), (False, 31, 5, 26, 96), (True, 31, 5, 26, 96)],
)
def test_blocks_hold_the_windows_of_whole_steps(
    k: int, step: int, padding_l: int, length: int, shared: bool, backend: str, device: str
) -> None:
    """Where 32 positions and the k - 1 inputs around them need 64 columns at most, but 128 with step - 1 more of them;
    with k = 31 and steps of 3 they are 64 anyway."""
    case = Case(T=length, B=1, C=1, H=1, k=k, padding_l=padding_l, step=step)
    found = errors(case, torch.float32, backend, device, shared=shared)
    allowed = tolerances(case, torch.float32, device, shared=shared)
    assert all(found[name] <= allowed[name] for name in found), (found, allowed)


@pytest.mark.skipif(not any("triton" in run for run in RUNS), reason="needs Triton's interpreter or a GPU")
@pytest.mark.parametrize(
    "case", [Case(T=150, B=2, C=8, H=2, k=5, padding_l=4), Case(T=95, B=1, C=8, H=2, k=7, padding_l=4, step=3)]
)
def test_programs_of_several_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of shared weights, as with more positions and sentences than the cases have."""
    monkeypatch.setattr(kernels, "PROGRAMS", 4)
    device = "cuda" if ("triton", "cuda") in RUNS else "cpu"
    found = errors(case, torch.float32, "triton", device, shared=True, dropout=0.3)
    allowed = tolerances(case, torch.float32, device, shared=True, dropout=0.3)
    assert all(found[name] <= allowed[name] for name in found), (found, allowed)


def tf32(x: Tensor) -> Tensor:
    """float32 rounded to nearest with 11 bits, as cvt.rna.tf32.f32 does."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def truncated(x: Tensor) -> Tensor:
    """float64 cut off to 24 bits."""
    mantissa, exponent = x.frexp()
    return (mantissa * 2**24).trunc().ldexp(exponent - 24)


@pytest.mark.parametrize("terms", [4, 31, 64, 128])
def test_the_error_of_tf32x3_is_within_its_bound(terms: int) -> None:
    """Products by parts of tf32, added in blocks of 4 with truncation; a product of tf32 alone is not within it."""
    a, b = random(2000, terms), random(2000, terms, seed=2)
    a[:500], b[:500] = a[:500].abs(), b[:500].abs()  # where truncation always goes one way
    parts = [(tf32(x), tf32(x - tf32(x))) for x in (a, b)]
    (a_high, a_low), (b_high, b_low) = parts
    total = torch.zeros(2000, dtype=torch.float64)
    for one, other in ((a_low, b_high), (a_high, b_low), (a_high, b_high)):
        for block in (one.double() * other.double()).split(4, dim=1):
            total = truncated(total + block.sum(dim=1))
    exact, magnitude = ((a.double() * b.double()).sum(1), (a.double() * b.double()).abs().sum(1))
    error = ((total - exact).abs() / magnitude).max().item()
    assert tf32x3_error(terms) / 100 < error <= tf32x3_error(terms)
    alone = (((a_high.double() * b_high.double()).sum(1) - exact).abs() / magnitude).max().item()
    assert alone > 5 * tf32x3_error(terms)


@pytest.mark.parametrize("shared", [False, True], ids=["dynamic", "light"])
@pytest.mark.parametrize("case", CASES)
def test_tolerances_on_a_gpu_tell_tf32x3_from_tf32(case: str, shared: bool) -> None:
    """They allow no more than a tenth of what a factor of 11 bits would be off by. Not where terms cancel, as in the
    gradients of weights under softmax."""
    allowed = tolerances(CASES[case], torch.float32, "cuda", shared=shared)
    assert max(allowed["output"], allowed["gradient of x"]) < 2**-11 / 10
    assert min(allowed.values()) > 0 or case == "no input in any window"


# --- naive.py against the equation, fairseq and PyTorch


@pytest.mark.parametrize(
    ("step", "padding_l", "inputs", "softmax", "dropout"),
    [
        (1, 3, 6, False, 0.0),
        (1, 1, 6, True, 0.0),
        (2, 0, 6, True, 0.4),
        (3, -1, 9, False, 0.4),
        (1, 4, 3, True, 0.4),
    ],
)
def test_naive_operators_follow_the_equation(
    step: int, padding_l: int, inputs: int, softmax: bool, dropout: float
) -> None:
    """O[i, c] = Σ_j W[i, h, j] · X[step·⌊i/step⌋ + j - padding_l, c] with h = c // (C / H), one term at a time."""
    length, batch, channels, heads, width = 7, 2, 6, 3, 4
    x = random(inputs, batch, channels, dtype=torch.float64)
    seed = SEED if dropout else None

    def by_loops(weight: Tensor, keep: Tensor) -> np.ndarray:
        w, k, out = weight.numpy(), keep.numpy(), np.zeros((length, batch, channels))
        for i, b, c, j in itertools.product(range(length), range(batch), range(channels), range(width)):
            h = c // (channels // heads)
            term = w[i, b, h, j]
            if softmax:
                term = math.exp(term) / sum(math.exp(other) for other in w[i, b, h])
            position = i - i % step + j - padding_l
            if 0 <= position < inputs and k[i, b, h, j]:
                out[i, b, c] += term / (1 - dropout) * x[position, b, c].item()
        return out

    options: dict[str, Any] = {"step": step, "softmax": softmax, "dropout": dropout, "seed": seed}
    shape = torch.Size((length, batch, heads, width))
    weight = random(*shape, seed=2, dtype=torch.float64)
    out = dynamic_conv_naive(x, weight, padding_l, **options)
    exact = by_loops(weight, keep_mask(seed, shape, dropout, x.device))
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-12, atol=1e-13)

    keep = keep_mask(seed, (1, 1, heads, width), dropout, x.device).expand(shape)
    out = light_conv_naive(x, weight[0, 0], padding_l, length=length, **options)
    exact = by_loops(weight[:1, :1].expand(shape), keep)
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-12, atol=1e-13)
    assert np.abs(exact).max() > 0.1


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(("length", "centred"), [(3, False), (20, False), (20, True)])
def test_operators_equal_fairseqs(length: int, centred: bool, softmax: bool) -> None:
    batch, channels, heads, width = 2, 12, 3, 5
    padding_l = (width - 1) // 2 if centred else width - 1
    x = random(length, batch, channels, dtype=torch.float64).requires_grad_()
    arguments = {"kernel_size": width, "padding_l": padding_l, "num_heads": heads, "weight_softmax": softmax}

    torch.manual_seed(3)
    dynamic = DynamicConv1dTBC(channels, **arguments).double().eval()
    weight = dynamic.weight_linear(x).view(length, batch, heads, width)
    compare(dynamic(x), dynamic_conv(x, weight, padding_l, softmax=softmax), x)
    compare(dynamic(x), dynamic_conv_naive(x, weight, padding_l, softmax=softmax), x)

    light = LightweightConv1dTBC(channels, **arguments).double().eval()
    shared = light.weight.view(heads, width)
    tolerance = 1e-6  # its softmax is in float32
    compare(light(x), light_conv(x, shared, padding_l, softmax=softmax), x, light.weight, tolerance=tolerance)
    compare(light(x), light_conv_naive(x, shared, padding_l, softmax=softmax), x, light.weight, tolerance=tolerance)


def compare(theirs: Tensor, ours: Tensor, *inputs: Tensor, tolerance: float = 1e-10) -> None:
    grad = random(*theirs.shape, seed=9, dtype=theirs.dtype)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for our, their in zip(
        torch.autograd.grad(ours, inputs, grad, retain_graph=True),
        torch.autograd.grad(theirs, inputs, grad, retain_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(our, their, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padding_l", [0, 2, 4])
def test_a_head_for_every_channel_is_a_depthwise_convolution(padding_l: int) -> None:
    length, batch, channels, width = 9, 2, 4, 5
    x = random(length, batch, channels, dtype=torch.float64).requires_grad_()
    weight = random(channels, width, seed=2, dtype=torch.float64).requires_grad_()
    padded = torch.nn.functional.pad(x.permute(1, 2, 0), (padding_l, width - 1 - padding_l))
    theirs = torch.nn.functional.conv1d(padded, weight.unsqueeze(1), groups=channels).permute(2, 0, 1)
    compare(theirs, light_conv_naive(x, weight, padding_l, softmax=False), x, weight)
    compare(theirs, light_conv(x, weight, padding_l, softmax=False), x, weight)


@pytest.mark.parametrize(
    ("operator", "step", "softmax"),
    pairwise([dynamic_conv_naive, light_conv_naive, dynamic_conv, light_conv], [1, 2], [False, True]),
)
def test_gradients_equal_finite_differences(operator: Callable[..., Tensor], step: int, softmax: bool) -> None:
    x = random(5, 2, 4, dtype=torch.float64).requires_grad_()
    weight = random(*(() if "light" in operator.__name__ else (5, 2)), 2, 3, seed=2, dtype=torch.float64)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return operator(x, weight, 2, step=step, softmax=softmax, dropout=0.3, seed=SEED)

    assert torch.autograd.gradcheck(function, (x, weight.requires_grad_()))


def test_the_second_derivative_is_refused() -> None:
    x, weight = random(5, 2, 4).requires_grad_(), random(5, 2, 2, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(dynamic_conv(x, weight, 2).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


# --- Memory

# From contiguous memory (T, B, C) to a view of the same shape with other strides and the same or other values.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "sentences outermost": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels outermost": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second channel": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "between others": lambda x: torch.nn.functional.pad(x, (1, 2, 3, 1, 2, 2), value=math.nan)[2:-2, 3:-1, 1:-2],
    "one sentence for all": lambda x: x[:, :1].expand_as(x),
    "one position for all": lambda x: x[:1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1].expand_as(x),
}
WEIGHT_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda w: w,
    "transposed": lambda w: w.transpose(-1, -2).contiguous().transpose(-1, -2),
    "one position outermost": lambda w: w.transpose(0, 1).contiguous().transpose(0, 1),
    "every second column": lambda w: w.repeat_interleave(2, dim=-1)[..., ::2],
    "one row for all": lambda w: w[:1].expand_as(w),
    "one number": lambda w: w.flatten()[0].expand_as(w),
}


@on_every_backend
@pytest.mark.parametrize(
    ("kind", "x_view", "weight_view", "grad_view"),
    [
        (kind, *views)
        for kind in ("dynamic", "light")
        for views in itertools.zip_longest(VIEWS, WEIGHT_VIEWS, [*VIEWS][1:], fillvalue="contiguous")
    ],
)
def test_inputs_of_any_strides(
    x_view: str, weight_view: str, grad_view: str, kind: str, backend: str, device: str
) -> None:
    x = VIEWS[x_view](random(6, 2, 8).to(device))
    weight = WEIGHT_VIEWS[weight_view](random(*((2, 3) if kind == "light" else (6, 2, 2, 3)), seed=2).to(device))
    grad = VIEWS[grad_view](random(6, 2, 8, seed=3).to(device))

    def run(operator: Callable[..., Tensor], x: Tensor, weight: Tensor, grad: Tensor, **options: str) -> list[Tensor]:
        inputs = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
        assert [tensor.stride() for tensor in inputs] == [x.stride(), weight.stride()]
        out = operator(*inputs, 2, dropout=0.2, seed=SEED.to(device), **options)
        return [out.detach(), *torch.autograd.grad(out, inputs, grad)]

    ours = run(light_conv if kind == "light" else dynamic_conv, x, weight, grad, backend=backend)
    naive = light_conv_naive if kind == "light" else dynamic_conv_naive
    exact = run(naive, *(tensor.double().contiguous() for tensor in (x, weight, grad)))
    for our, their in zip(ours, exact, strict=True):
        torch.testing.assert_close(our, their.float(), rtol=1e-5, atol=1e-5)


@on_every_backend
def test_batch_first_is_the_transposed_operator(backend: str, device: str) -> None:
    x, grad = random(3, 9, 8).to(device), random(3, 9, 8, seed=3).to(device)
    dynamic_weight, light_weight = random(3, 9, 2, 5, seed=2).to(device), random(2, 5, seed=2).to(device)
    for operator, weight in ((dynamic_conv, dynamic_weight), (light_conv, light_weight)):
        inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        out = operator(*inputs, 4, batch_first=True, dropout=0.2, seed=SEED.to(device), backend=backend)
        assert out.is_contiguous()  # in memory as x is: what follows needs no copy
        gradients = torch.autograd.grad(out, inputs, grad)
        assert gradients[0].is_contiguous()

        turned = [x.transpose(0, 1).contiguous(), weight.transpose(0, 1).contiguous() if weight.dim() == 4 else weight]
        turned = [tensor.clone().requires_grad_() for tensor in turned]
        other = operator(*turned, 4, dropout=0.2, seed=SEED.to(device), backend=backend)
        assert other.is_contiguous()
        d_x, d_weight = torch.autograd.grad(other, turned, grad.transpose(0, 1).contiguous())
        torch.testing.assert_close(out, other.transpose(0, 1))
        torch.testing.assert_close(gradients[0], d_x.transpose(0, 1))
        torch.testing.assert_close(gradients[1], d_weight.transpose(0, 1) if weight.dim() == 4 else d_weight)


@pytest.mark.skipif(("triton", "cpu") not in RUNS, reason="with a GPU the kernels do not run on the CPU")
@pytest.mark.parametrize("kind", ["dynamic", "light"])
def test_triton_kernels_get_the_inputs_themselves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy, whatever the strides: every kernel gets the address and the strides of x, weight and the gradient."""
    x = VIEWS["between others"](random(6, 2, 8)).requires_grad_()
    weight = WEIGHT_VIEWS["transposed"](random(*((2, 3) if kind == "light" else (6, 2, 2, 3)), seed=2)).requires_grad_()
    grad = VIEWS["one number"](random(6, 2, 8))
    launched = record_launches(kernels, monkeypatch)
    out = (light_conv if kind == "light" else dynamic_conv)(x, weight, 2, backend="triton")
    out.backward(grad)
    assert len(launched) == (2 if kind == "light" else 3)
    seen = set()
    for arguments in launched:
        for name, letter, tensor in (("x_ptr", "x", x), ("w_ptr", "w", weight), ("grad_ptr", "g", grad)):
            if name in arguments:
                seen.add(name)
                assert arguments[name].data_ptr() == tensor.data_ptr()
                if letter != "w":
                    assert tuple(arguments[f"{letter}_{axis}"] for axis in "tbc") == tensor.stride()
    assert seen == {"x_ptr", "w_ptr", "grad_ptr"}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "light"])
def test_memory_of_the_torch_backend(kind: str, batch_first: bool) -> None:
    """O(T·C): a position costs the memory of its result and little more, where the naive operator's costs k times that.

    Each more position needs its C outputs or gradients; a copy of x would double that.
    """
    heads, channels, width, lengths = 1, 256, 31, (256, 512)

    def costs(operator: Callable[..., Tensor], **options: Any) -> tuple[float, float]:
        """Numbers (of 4 bytes) that a position more costs, forwards and backwards."""
        peaks = []
        for length in lengths:
            x = random(length, 1, channels)
            weight = random(*((heads, width) if kind == "light" else (length, 1, heads, width)))
            if batch_first and options:
                x, weight = x.transpose(0, 1), weight.transpose(0, 1) if kind == "dynamic" else weight
            inputs = [x.requires_grad_(), weight.requires_grad_()]
            options = {**options, "dropout": 0.1, "seed": SEED}
            forwards = peak_memory(lambda: operator(*inputs, width - 1, **options))  # noqa: B023
            out = operator(*inputs, width - 1, **options)
            grad = torch.ones_like(out)
            backwards = peak_memory(lambda: torch.autograd.grad(out, inputs, grad))  # noqa: B023
            peaks.append((forwards, backwards))
        return tuple((more - less) / 4 / (lengths[1] - lengths[0]) for less, more in zip(*peaks, strict=True))

    operator, naive = (light_conv, light_conv_naive) if kind == "light" else (dynamic_conv, dynamic_conv_naive)
    costs(operator, backend="torch", batch_first=batch_first)  # whatever PyTorch allocates once
    ours, theirs = costs(operator, backend="torch", batch_first=batch_first), costs(naive)
    assert all(channels <= cost < 1.5 * channels for cost in ours), ours
    # Forwards only: in its gradient the naive operator frees what it kept while it allocates.
    assert theirs[0] > width * channels / 2, theirs


# Sizes that fit, strides that do not: an offset in 32 bits would be negative. Memory never touched costs nothing.
FAR = """
import torch
from amlp_fairseq.ops.dynamic_conv import dynamic_conv, light_conv

def far(tensor, axis):
    strides = list(tensor.stride())
    strides[axis] = 2**30
    memory = torch.empty(2**30 * (tensor.size(axis) - 1) + tensor.numel(), dtype=tensor.dtype)
    view = memory.as_strided(tensor.shape, strides)
    return view.copy_(tensor)

torch.manual_seed(1)
x, weight, grad = torch.randn(3, 3, 3).half(), torch.randn(3, 3, 3, 3).half(), torch.randn(3, 3, 3).half()
for operator, weight in ((dynamic_conv, weight), (light_conv, weight[0, 0])):
    def run(x, weight, grad):
        inputs = [x.requires_grad_(), weight.requires_grad_()]
        out = operator(*inputs, 2, backend="triton", dropout=0.2, seed=torch.tensor([1]))
        return [out.detach(), *torch.autograd.grad(out, inputs, grad)]
    near = run(x, weight, grad)
    for axis in range(3):
        pairs = zip(near, run(far(x, axis), weight, far(grad, axis)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), ("x and grad", axis)
    for axis in range(weight.dim()):
        pairs = zip(near, run(x, far(weight.detach(), axis), grad), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), ("weight", axis)
print("no overflow")
"""


@pytest.mark.slow
@pytest.mark.skipif(("triton", "cpu") not in RUNS, reason="with a GPU the kernels do not run on the CPU")
def test_offsets_beyond_32_bits() -> None:
    """In a process of its own, which an overflow would end."""
    assert "no overflow" in fresh(sys.executable, "-c", FAR).stdout


# --- DropConnect


def dropped_weights(
    kind: str, backend: str, device: str, *, dropout: float, seed: Tensor | None, length: int = 24, batch: int = 3
) -> Tensor:
    """(T, B, H, k): 1 where a weight is kept, times its scale.

    Read off the output of weights 1: one window for all positions, on inputs that are 1 at one place for each channel.
    """
    heads, width = 2, 16
    x = torch.eye(width, device=device).repeat(1, heads).unsqueeze(1).expand(-1, batch, -1)
    weight = torch.ones(*(() if kind == "light" else (length, batch)), heads, width, device=device)
    options: dict[str, Any] = {"length": length} if kind == "light" else {}
    operator = light_conv if kind == "light" else dynamic_conv
    seed = None if seed is None else seed.to(device)
    out = operator(x, weight, 0, step=length, softmax=False, dropout=dropout, seed=seed, backend=backend, **options)
    return out.view(length, batch, heads, width).cpu()


@on_every_backend
@pytest.mark.parametrize("dropout", [0.1, 0.9])
def test_dropconnect_drops_what_the_seed_says_and_scales_the_rest(dropout: float, backend: str, device: str) -> None:
    found = dropped_weights("dynamic", backend, device, dropout=dropout, seed=SEED)
    keep = keep_mask(SEED, found.shape, dropout, torch.device("cpu"))
    torch.testing.assert_close(found, keep / (1 - dropout), rtol=1e-6, atol=0)
    assert torch.equal(found, dropped_weights("dynamic", backend, device, dropout=dropout, seed=SEED.clone()))
    assert not torch.equal(found, dropped_weights("dynamic", backend, device, dropout=dropout, seed=SEED + 1))


@on_every_backend
def test_dropconnect_of_light_conv_drops_for_all_positions_and_sentences(backend: str, device: str) -> None:
    found = dropped_weights("light", backend, device, dropout=0.5, seed=SEED)
    assert bool((found == found[0, 0]).all())
    assert set(found.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(found[0, 0] > 0, keep_mask(SEED, (1, 1, *found.shape[2:]), 0.5, torch.device("cpu"))[0, 0])


@on_every_backend
@pytest.mark.parametrize("kind", ["dynamic", "light"])
def test_without_a_seed_torchs_generator_decides(kind: str, backend: str, device: str) -> None:
    torch.manual_seed(5)
    first, second = (dropped_weights(kind, backend, device, dropout=0.5, seed=None) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(dropped_weights(kind, backend, device, dropout=0.5, seed=None), first)


def test_without_dropout_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    dynamic_conv(random(3, 1, 4), random(3, 1, 2, 3), 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("seed", "dropout"), [(0, 0.1), (1, 0.3), (2**31, 0.9), (2**32 - 1, 0.3)])
def test_dropped_weights_look_random(dropout: float, seed: int) -> None:
    """Their share, and the correlation with the neighbours in every direction and with the next seed's."""
    shape = (64, 8, 8, 31)

    def mask(seed: int) -> Tensor:
        return keep_mask(torch.tensor([seed % 2**32]), shape, dropout, torch.device("cpu")).double()

    keep = mask(seed)
    sigma = math.sqrt(dropout * (1 - dropout))
    assert abs(keep.mean().item() - (1 - dropout)) < 4 * sigma / math.sqrt(keep.numel())
    for axis, size in enumerate(shape):  # no row or column is favoured: 5 sigma, for the worst of up to 64
        shares = keep.mean(dim=[other for other in range(4) if other != axis])
        assert (shares - (1 - dropout)).abs().max().item() < 5 * sigma / math.sqrt(keep.numel() / size)
    centred = (keep - (1 - dropout)) / sigma
    pairs = [(centred.narrow(axis, 0, n - 1), centred.narrow(axis, 1, n - 1)) for axis, n in enumerate(shape)]
    pairs.append((centred.flatten()[:-1], centred.flatten()[1:]))
    pairs.append((centred, (mask(seed + 1) - (1 - dropout)) / sigma))
    for here, there in pairs:
        assert abs((here * there).mean().item()) < 4 / math.sqrt(here.numel())


@pytest.mark.parametrize(("backend", "device"), RUNS)
def test_of_a_seed_32_bits_count(backend: str, device: str) -> None:
    options = {"backend": backend, "dropout": 0.5}
    inputs = {"x": random(5, 2, 8).to(device), "weight": random(5, 2, 2, 3).to(device)}
    for large, small in ((-1, 2**32 - 1), (2**32 + 5, 5)):
        one, other = (call(**inputs, **options, seed=torch.tensor([seed], device=device)) for seed in (large, small))
        assert torch.equal(one, other)


def test_dropping_nearly_everything_keeps_nothing_more() -> None:
    assert keep_mask(SEED, (50, 2, 2, 9), 1 - 2**-40, torch.device("cpu")).sum() == 0


def test_mask_by_whole_numbers() -> None:
    """The hash in Python's numbers, which do not overflow, where rows need more than 32 bits."""

    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    first, batch, heads, width, seed = 2**33 // 6 - 1, 2, 3, 5, 2**32 - 3
    keep = keep_mask(torch.tensor([seed]), (3, batch, heads, width), 0.3, torch.device("cpu"), first)
    for t, b, h, j in itertools.product(range(3), range(batch), range(heads), range(width)):
        row = ((first + t) * batch + b) * heads + h
        key = mix(mix(seed ^ row >> 32) ^ row % 2**32)
        assert bool(keep[t, b, h, j]) == (mix((key + j * 0x9E3779B9) % 2**32) >= 0.3 * 2**32)
    assert drop_threshold(0.5) == 2**31
    whole = keep_mask(SEED, (9, batch, heads, width), 0.3, torch.device("cpu"))
    assert torch.equal(whole[4:], keep_mask(SEED, (5, batch, heads, width), 0.3, torch.device("cpu"), first=4))


# --- torch.compile, mixed types


@pytest.mark.parametrize(("backend", "device"), [("auto", "cpu"), *RUNS])
def test_torch_compile_takes_the_operators_whole(backend: str, device: str, log: pytest.LogCaptureFixture) -> None:
    """The log too, for the first call is the one that logs."""

    def function(x: Tensor, dynamic_weight: Tensor, light_weight: Tensor, seed: Tensor) -> Tensor:
        options: dict[str, Any] = {"dropout": 0.1, "seed": seed, "backend": backend}
        y = dynamic_conv(x.sin(), dynamic_weight, 2, **options)
        return light_conv(y, light_weight, 1, step=2, batch_first=True, **options).square()

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        inputs = [random(6, 4, 8), random(6, 4, 2, 3, seed=2), random(2, 3, seed=3)]
        inputs = [tensor.to(device).requires_grad_() for tensor in inputs]
        out = function(*inputs, SEED.to(device))
        return [out.detach(), *torch.autograd.grad(out.sum(), inputs)]

    torch.compiler.reset()
    compiled = run(torch.compile(function, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(compiled, run(function))


@on_every_backend
@pytest.mark.parametrize(("kind", "softmax"), [("dynamic", True), ("light", False), ("light, transposed", True)])
def test_custom_operators_keep_torchs_rules(kind: str, softmax: bool, backend: str, device: str) -> None:
    """Requirements of torch.compile and autograd: torch.library's own checks of schema, shapes, strides and
    gradients."""
    x = random(2, 5, 8).to(device).transpose(0, 1)  # in memory as with batch_first
    weight = random(5, 2, 2, 3) if kind == "dynamic" else random(2, 3)
    weight = (WEIGHT_VIEWS["transposed"](weight) if "transposed" in kind else weight).to(device)
    options = (SEED.to(device), 2, 5, 2, softmax, 0.3, backend)
    torch.library.opcheck(op._conv, (x.detach().requires_grad_(), weight.detach().requires_grad_(), *options))
    seed, padding_l, _, *others = options
    grad, logsumexp = random(5, 2, 8).to(device), op._conv(x, weight, *options)[1]
    for channels in (x, x[:, :, ::2]):  # and with gaps between the channels
        arguments = (grad[:, :, : channels.size(2)], channels, weight, logsumexp, seed, padding_l, *others)
        torch.library.opcheck(op._conv_backward, arguments)


@pytest.mark.parametrize(
    ("kind", "dtype", "autocast", "backend", "device"),
    [
        (*rest, *run)
        for run, *rest in pairwise(RUNS, ["dynamic", "light"], [torch.float16, torch.bfloat16], [False, True])
    ],
)
def test_half_precision_inputs_with_full_precision_weights(
    kind: str, dtype: torch.dtype, autocast: bool, backend: str, device: str
) -> None:
    x = random(7, 2, 8).to(device, dtype).requires_grad_()
    weight = random(*((2, 3) if kind == "light" else (7, 2, 2, 3)), seed=2).to(device).requires_grad_()
    with torch.autocast(device, dtype, enabled=autocast):
        out = (light_conv if kind == "light" else dynamic_conv)(x, weight, 2, backend=backend)
    grad = random(7, 2, 8, seed=3).to(device, dtype)
    d_x, d_weight = torch.autograd.grad(out, (x, weight), grad)
    assert (out.dtype, d_x.dtype, d_weight.dtype) == (dtype, dtype, torch.float32)

    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    exact = (light_conv_naive if kind == "light" else dynamic_conv_naive)(*exact_inputs, 2)
    exact_gradients = torch.autograd.grad(exact, exact_inputs, grad.double())
    results = [(out, exact), (d_x, exact_gradients[0]), (d_weight, exact_gradients[1])]
    for our, their in results:
        error = (our.double() - their).abs().max() / their.abs().max()
        # The weights' gradient has seen no rounding on its way but that of the GPU's tf32.
        assert error < (TOLERANCES[dtype] if our.dtype == dtype or device == "cuda" else 3e-6)


# --- Input that does not fit


def call(kind: str = "dynamic", **changes: Any) -> Tensor:
    arguments: dict[str, Any] = {"x": random(5, 2, 8), "padding_l": 2}
    arguments["weight"] = random(2, 3) if kind == "light" else random(5, 2, 2, 3)
    return (light_conv if kind == "light" else dynamic_conv)(**{**arguments, **changes})


BAD = {
    "channels that heads do not divide": ("dynamic", {"x": random(5, 2, 7)}, "^x has 7 channels.* 2 heads of weight"),
    "channels that light heads do not divide": ("light", {"x": random(5, 2, 7)}, "^x has 7 channels.* 2 heads"),
    "no heads": ("light", {"weight": random(0, 3)}, "weight"),
    "no inputs": ("dynamic", {"x": random(0, 2, 8)}, "^x .*at least one position"),
    "no outputs": ("dynamic", {"weight": random(0, 2, 2, 3)}, "weight .*at least one position"),
    "no length": ("light", {"length": 0}, "^length .*not 0"),
    "negative length": ("light", {"length": -1}, "^length .*not -1"),
    "kernel of 0": ("dynamic", {"weight": random(5, 2, 2, 0)}, "weight .*width"),
    "light kernel of 0": ("light", {"weight": random(2, 0)}, "weight .*width"),
    "integer x": ("dynamic", {"x": torch.ones(5, 2, 8, dtype=torch.int64)}, "^x .*int64"),
    "integer weight": ("dynamic", {"weight": torch.ones(5, 2, 2, 3, dtype=torch.int32)}, "^weight .*int32"),
    "integer light weight": ("light", {"weight": torch.ones(2, 3, dtype=torch.int32)}, "^weight .*int32"),
    "x of 2 dimensions": ("dynamic", {"x": random(5, 8)}, r"^x .*3 dimensions.*\(5, 8\)"),
    "x of 4 dimensions": ("light", {"x": random(5, 2, 4, 2)}, "^x .*3 dimensions"),
    "weight of light_conv": ("dynamic", {"weight": random(2, 3)}, "^weight .*4 dimensions"),
    "weight of dynamic_conv": ("light", {"weight": random(5, 2, 2, 3)}, "^weight .*2 dimensions"),
    "weight for more sentences": ("dynamic", {"weight": random(5, 3, 2, 3)}, "^weight is for 3 sentences, x has 2"),
    "weight not batch first": ("dynamic", {"batch_first": True, "x": random(2, 5, 8)}, "^weight is for 5 sentences"),
    "x elsewhere": ("dynamic", {"x": random(5, 2, 8).to("meta")}, "^x is on meta, weight on cpu"),
    "weight elsewhere": ("light", {"weight": random(2, 3).to("meta")}, "^x is on cpu, weight on meta"),
    "seed elsewhere": ("dynamic", {"dropout": 0.1, "seed": SEED.to("meta")}, "^seed"),
    "step of 0": ("dynamic", {"step": 0}, "^step .*not 0"),
    "negative step": ("light", {"step": -1}, "^step .*not -1"),
    "dropout of everything": ("dynamic", {"dropout": 1.0}, r"^dropout .*not 1\.0"),
    "negative dropout": ("light", {"dropout": -0.1}, r"^dropout .*not -0\.1"),
    "dropout not a number": ("light", {"dropout": math.nan}, "^dropout .*not nan"),
    "seed of floats": ("dynamic", {"dropout": 0.1, "seed": torch.tensor([1.0])}, "^seed"),
    "seed of 32 bits": ("light", {"dropout": 0.1, "seed": torch.tensor([1], dtype=torch.int32)}, "^seed"),
    "seed without dimensions": ("dynamic", {"dropout": 0.1, "seed": torch.tensor(1)}, "^seed"),
    "seed that is no tensor": ("light", {"dropout": 0.1, "seed": 3}, "^seed"),
    "two seeds": ("dynamic", {"dropout": 0.1, "seed": torch.tensor([1, 2])}, "^seed"),
    "unknown backend": ("dynamic", {"backend": "cuda"}, "^dynamic_conv: backend 'cuda'.* auto, torch, triton"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "match"), BAD.values(), ids=BAD)
def test_input_that_does_not_fit_is_refused(kind: str, changes: dict[str, Any], match: str) -> None:
    assert call(kind).shape == (5, 2, 8)
    with pytest.raises(ValueError, match=match):
        call(kind, **changes)


# --- Choice of the backend


def test_triton_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"dynamic_conv: backend 'triton' .*tensors are on cpu"):
        call(backend="triton")
    with pytest.raises(RuntimeError, match=r"light_conv: backend 'triton' .*tensors are on cpu"):
        call("light", backend="triton")
    monkeypatch.setattr(backends, "TRITON_INSTALLED", False)
    with pytest.raises(RuntimeError, match="triton is not installed"):
        backends.choose_backend("triton", torch.device("cuda"), "operator")


@pytest.mark.parametrize(
    ("triton", "numpy", "runs"), [("3.6.0", "2.3.5", 1), ("3.6.0", "2.4.0", 0), ("3.7.1", "2.5.1", 1)]
)
def test_an_old_interpreter_needs_an_old_numpy(
    triton: str, numpy: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(versions, "version", {"triton": triton, "numpy": numpy}.__getitem__)
    monkeypatch.setattr(backends, "INTERPRETER_OBSTACLE", backends._interpreter_obstacle())
    if runs:
        assert backends.choose_backend("triton", torch.device("cpu"), "operator") == "triton"
    else:
        with pytest.raises(RuntimeError, match=r"the interpreter of triton 3\.6 needs numpy < 2\.4, not 2\.4$"):
            backends.choose_backend("triton", torch.device("cpu"), "operator")


@pytest.mark.parametrize("name", ["x", "weight"])
def test_triton_is_refused_for_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    tensor = {"x": random(5, 2, 8), "weight": random(5, 2, 2, 3)}[name].double()
    with pytest.raises(RuntimeError, match=r"dynamic_conv: backend 'triton' .*float64"):
        call(**{name: tensor}, backend="triton")


@pytest.mark.parametrize(("width", "step"), [(98, 1), (3, 33), (3, 3000)])
def test_windows_too_large_for_the_kernels_run_on_torch(width: int, step: int, log: pytest.LogCaptureFixture) -> None:
    options = {"weight": random(5, 2, 2, width), "step": step}
    with pytest.raises(RuntimeError, match=f"'triton' cannot run: the kernel width {width} with step {step} is too"):
        call(**options, backend="triton")
    torch.testing.assert_close(call(**options), dynamic_conv_naive(random(5, 2, 8), options["weight"], 2, step=step))
    assert "on torch" in log.messages[0]


@pytest.mark.parametrize(
    ("device", "installed", "interpreter", "choice", "reason"),
    [
        ("cpu", True, "0", "torch", "the tensors are on cpu, not on a CUDA device"),
        ("cpu", True, "1", "torch", "TRITON_INTERPRET is set, but only for tests"),
        ("cpu", False, "0", "torch", "the package triton is not installed"),
        ("cuda", False, "0", "torch", "the package triton is not installed"),
        ("cuda", True, "0", "triton", None),
    ],
)
def test_auto_logs_its_choice_and_the_reason_once(
    device: str,
    installed: bool,
    interpreter: str,
    choice: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreter)
    monkeypatch.setattr(backends, "TRITON_INSTALLED", installed)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="A100", major=8, minor=0)
    )
    for _ in range(3):
        assert backends.choose_backend("auto", torch.device(device), "dynamic_conv") == choice
    expected = f"dynamic_conv runs on {choice} for {device} tensors" + (f" ({reason})" if reason else "")
    assert log.messages == [expected]
    backends.choose_backend("auto", torch.device(device), "light_conv")
    assert log.messages == [expected, expected.replace("dynamic", "light")]


def test_gpus_before_ampere_and_those_of_amd(monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    gpu = SimpleNamespace(name="Tesla T4", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    limit = "Tesla T4 has compute capability 7.5, the kernels need 8.0"
    assert backends.choose_backend("auto", torch.device("cuda"), "dynamic_conv") == "torch"
    assert log.messages == [f"dynamic_conv runs on torch for cuda tensors ({limit})"]
    with pytest.raises(RuntimeError, match=f"dynamic_conv: backend 'triton' cannot run: {limit}"):
        backends.choose_backend("triton", torch.device("cuda"), "dynamic_conv")
    assert (precision(torch.float32), precision(torch.float16)) == ("tf32x3", "tf32")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert backends.choose_backend("triton", torch.device("cuda"), "dynamic_conv") == "triton"
    assert (precision(torch.float32), precision(torch.float16)) == ("ieee", "ieee")


def test_auto_runs_on_cpu_tensors_of_every_dtype(log: pytest.LogCaptureFixture) -> None:
    for dtype in TOLERANCES:
        for _ in range(2):
            x, weight = random(5, 2, 8).to(dtype), random(5, 2, 2, 3).to(dtype)
            assert torch.equal(call(x=x, weight=weight), call(x=x, weight=weight, backend="torch"))
    assert len(log.messages) == 1
    assert log.messages[0].startswith("dynamic_conv runs on torch for cpu tensors (")


def test_a_backend_that_is_asked_for_is_not_logged(log: pytest.LogCaptureFixture) -> None:
    call(backend="torch")
    assert not log.messages


def test_both_operators_take_the_same_options() -> None:
    options = [set(inspect.signature(operator).parameters) for operator in (dynamic_conv, light_conv)]
    assert options[0] | {"length"} == options[1]


def test_the_environment_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("AMLP_FAIRSEQ_BACKEND", "triton")
    assert backends.choose_backend("auto", torch.device("cpu"), "dynamic_conv") == "triton"
    assert backends.choose_backend("torch", torch.device("cpu"), "dynamic_conv") == "torch"
    with pytest.raises(RuntimeError, match="dynamic_conv: AMLP_FAIRSEQ_BACKEND 'triton' cannot run: the kernel width"):
        call(weight=random(5, 2, 2, 98))
    monkeypatch.setenv("AMLP_FAIRSEQ_BACKEND", "cuda")
    with pytest.raises(ValueError, match="AMLP_FAIRSEQ_BACKEND 'cuda' is unknown; choose one of auto, torch, triton"):
        call()
