"""The operator cross_covariance: every implementation against naive.py, and that against the equation."""

from __future__ import annotations

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
from launched import record_launches
from memory import peak_memory
from torch import Tensor

from amlp_fairseq.ops import backend as backends
from amlp_fairseq.ops.amlp_cov import cpu, cross_covariance, kernels, op
from amlp_fairseq.ops.amlp_cov.cases import CASES, TOLERANCES, errors, tolerances
from amlp_fairseq.ops.amlp_cov.naive import cross_covariance_naive
from amlp_fairseq.ops.launches import LAUNCHES

# Backend and device. Without a GPU, Triton's kernels run in its interpreter: see conftest.py.
RUNS = [("torch", "cpu"), *([("triton", "cpu")] if backends.interpreting() else [])]
if torch.cuda.is_available():
    RUNS += [("torch", "cuda"), ("triton", "cuda")]
on_every_backend = pytest.mark.parametrize(("backend", "device"), RUNS, ids=["-".join(run) for run in RUNS])
in_the_interpreter = pytest.mark.skipif(
    ("triton", "cpu") not in RUNS, reason="with a GPU the kernels do not run on the CPU"
)


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run(operator: Callable[..., Tensor], inputs: list[Tensor | None], grad: Tensor, **options: Any) -> list[Tensor]:
    """The output and the gradients of x, y and, if there is one, temperature."""
    mask = options.pop("padding_mask", None)
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
    out = operator(*leaves, padding_mask=mask, **options)
    return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], grad)]


def agree(ours: list[Tensor], exact: list[Tensor], tolerance: float = 1e-5) -> None:
    for our, their in zip(ours, exact, strict=True):
        torch.testing.assert_close(our.double(), their.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("poisoned")
def test_fresh_memory_is_poisoned() -> None:
    x = torch.zeros(2, 3, 4, 5)
    outputs = op.new_outputs(x, x, True) + op.new_gradients(x, x, torch.ones(3))
    for fresh_memory in (torch.empty(3), torch.empty_like(x), x.new_empty(2), *outputs):
        assert bool(fresh_memory.isnan().all())


# --- Every implementation against naive.py in float64


def parity_runs() -> Iterator[Any]:
    """Every case in the most exact type of each implementation, and a type changes loads and stores only: a few."""
    for ((backend, device), dtype), case in itertools.product(itertools.product(RUNS, TOLERANCES), CASES):
        if backend == "triton" and dtype == torch.float64:
            continue
        most_exact = dtype == (torch.float64 if backend == "torch" else torch.float32)
        if not most_exact and case not in ("padding left, right, both", "long, the last block not whole"):
            continue
        name = f"{backend}-{device}-{case}-{str(dtype).removeprefix('torch.')}"
        yield pytest.param(case, dtype, backend, device, id=name)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("case", "dtype", "backend", "device"), list(parity_runs()))
def test_output_and_gradients_agree_with_the_naive_operator(
    case: str, dtype: torch.dtype, backend: str, device: str
) -> None:
    found = errors(CASES[case], dtype, backend, device)
    names = {"output", "gradient of x", "gradient of y", "gradient of temperature"}
    assert set(found) == (names if CASES[case].temperature else names - {"gradient of temperature"})
    # Not max(…) <= …, which lets a NaN pass.
    allowed = tolerances(CASES[case], dtype, device)
    assert set(allowed) == set(found)
    assert device != "cpu" or set(allowed.values()) == {TOLERANCES[dtype]}
    assert all(found[name] <= allowed[name] for name in found), (found, allowed)


@pytest.mark.parametrize("case", CASES)
def test_more_is_allowed_on_a_gpu_only_where_terms_cancel(case: str) -> None:
    """The gradient of the temperature in float32 has a larger tolerance."""
    allowed = tolerances(CASES[case], torch.float32, "cuda")
    temperature = allowed.pop("gradient of temperature", TOLERANCES[torch.float32])
    assert set(allowed.values()) == {TOLERANCES[torch.float32]}
    assert temperature >= TOLERANCES[torch.float32]
    assert set(tolerances(CASES[case], torch.float16, "cuda").values()) == {TOLERANCES[torch.float16]}


def test_cases_need_several_blocks() -> None:
    """So that what crosses their borders is tested."""
    longest = max(case.n for case in CASES.values())
    positions = {cpu.BLOCK} | {launch.positions for name, launch in LAUNCHES.items() if "cross_covariance" in name[0]}
    assert longest > 2 * max(positions)
    assert all(longest % block != 0 for block in positions)


@pytest.mark.skipif(not any("triton" in run for run in RUNS), reason="needs Triton's interpreter or a GPU")
@pytest.mark.parametrize("programs", [1, 6])
def test_programs_of_several_blocks(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more heads and sentences than the cases have."""
    monkeypatch.setattr(kernels, "PROGRAMS", programs)
    device = "cuda" if ("triton", "cuda") in RUNS else "cpu"
    for name in ("long, the last block not whole", "long padding"):
        found, allowed = errors(CASES[name], torch.float32, "triton", device), tolerances(CASES[name], torch.float32)
        assert all(found[name] <= allowed[name] for name in found), (found, allowed)


# --- naive.py against the equation


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("with_temperature", [False, True])
@pytest.mark.parametrize("counted", [(), ((1, 5), (0, 2))])
def test_naive_operator_follows_the_equation(
    counted: tuple[tuple[int, int], ...], with_temperature: bool, normalize: bool
) -> None:
    """P[d, e] = exp(S[d, e]) / Σ_e exp(S[d, e]), S = τ · Σ_i X[i, d] Y[i, e] / (‖X_d‖ ‖Y_e‖), one term at a time."""
    batch, heads, length, d_size, e_size = 2, 2, 5, 2, 3
    x, y = (random(batch, heads, length, size, seed=size, dtype=torch.float64) for size in (d_size, e_size))
    tau = 1 + random(heads, seed=4, dtype=torch.float64).square() if with_temperature else None
    exact = np.zeros((batch, heads, d_size, e_size))
    for b, h, d in itertools.product(range(batch), range(heads), range(d_size)):
        first, end = counted[b] if counted else (0, length)
        scores = []
        for e in range(e_size):
            product = x_square = y_square = 0.0
            for i in range(first, end):
                product += x[b, h, i, d].item() * y[b, h, i, e].item()
                x_square += x[b, h, i, d].item() ** 2
                y_square += y[b, h, i, e].item() ** 2
            if normalize:
                product /= math.sqrt(x_square) * math.sqrt(y_square)
            scores.append(product * (1.0 if tau is None else tau[h].item()))
        exact[b, h, d] = np.exp(scores) / np.exp(scores).sum()
    mask = None
    if counted:
        mask = torch.tensor([[not first <= i < end for i in range(length)] for first, end in counted])
    out = cross_covariance_naive(x, y, tau, mask, normalize=normalize)
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-12, atol=1e-13)
    out = cross_covariance(x, y, tau, mask, normalize=normalize)
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("operator", [cross_covariance_naive, cross_covariance])
def test_gradients_equal_finite_differences(operator: Callable[..., Tensor], masked: bool, normalize: bool) -> None:
    inputs = [random(2, 2, 5, 3, dtype=torch.float64), random(2, 2, 5, 2, seed=2, dtype=torch.float64)]
    inputs.append(1 + random(2, seed=3, dtype=torch.float64).square())
    mask = torch.tensor([[True, False, False, False, True], [False] * 5]) if masked else None

    def function(x: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
        return operator(x, y, temperature, mask, normalize=normalize)

    inputs = [tensor.requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradcheck(lambda x: operator(x, x, None, mask, normalize=normalize), inputs[:1])


def test_the_second_derivative_is_refused() -> None:
    x, y = random(1, 2, 5, 3).requires_grad_(), random(1, 2, 5, 3, seed=2)
    (gradient,) = torch.autograd.grad(cross_covariance(x, y).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


@on_every_backend
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_tensors_own_covariance(masked: bool, normalize: bool, backend: str, device: str) -> None:
    """σ2(QᵀQ): both gradients arrive at the one tensor."""
    x, grad = 0.1 * random(2, 2, 600, 4).to(device), random(2, 2, 4, 4, seed=2).to(device)
    x[:, :, :, 1] += 0.1 * x[:, :, :, 0]
    tau = 1 + random(2, seed=3).square().to(device)
    options: dict[str, Any] = {"normalize": normalize}
    if masked:
        options["padding_mask"] = (torch.arange(1200, device=device) % 599 < 9).view(2, 600)
    ours = run(lambda x, t, **more: cross_covariance(x, x, t, **more, backend=backend), [x, tau], grad, **options)
    exact = run(
        lambda x, t, **more: cross_covariance_naive(x, x, t, **more),
        [x.double(), tau.double()],
        grad.double(),
        **options,
    )
    agree(ours, exact)


@on_every_backend
def test_without_gradients_the_result_is_the_same(backend: str, device: str) -> None:
    x, y, tau = random(2, 2, 9, 4).to(device), random(2, 2, 9, 3, seed=2).to(device), random(2, seed=3).to(device)
    for other in (x, y):
        expected = cross_covariance(x, other, tau, backend=backend)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            assert torch.equal(cross_covariance(x, other, tau, backend=backend), expected)


@on_every_backend
def test_channels_without_a_norm(backend: str, device: str) -> None:
    """Where the least norm 1e-12 divides, it has no gradient; 0 divided by it is 0."""
    x, y = random(1, 1, 6, 4), random(1, 1, 6, 3, seed=2)
    x[..., 0] = 0
    x[..., 1] *= 1e-14
    x[..., 2] *= 1e-11  # just large enough to be divided by its own norm
    y[..., 1] = 0
    grad = random(1, 1, 4, 3, seed=3)
    ours = run(cross_covariance, [x.to(device), y.to(device)], grad.to(device), backend=backend)
    exact = run(cross_covariance_naive, [x.double(), y.double()], grad.double())
    for our, their in zip(ours, exact, strict=True):
        for channel in range(their.size(3)):  # of very different sizes
            our_channel, their_channel = our[..., channel].cpu().double(), their[..., channel]
            assert (our_channel - their_channel).abs().max() <= 1e-5 * their_channel.abs().max()
    assert exact[1][..., 1].abs().max() > 1e9


@on_every_backend
def test_nothing_gives_nothing(backend: str, device: str) -> None:
    for batch, heads in ((0, 2), (2, 0)):
        x = torch.ones(batch, heads, 5, 4, device=device, requires_grad=True)
        out = cross_covariance(x, x, backend=backend)
        out.sum().backward()
        assert out.shape == (batch, heads, 4, 4)
        assert x.grad is not None
        assert x.grad.shape == x.shape


@on_every_backend
def test_one_position_normalised(backend: str, device: str) -> None:
    """Its channels are 1 or -1, whatever their size: no gradient."""
    x, y = random(2, 2, 1, 4).to(device), random(2, 2, 1, 3, seed=2).to(device)
    out, d_x, d_y = run(cross_covariance, [x, y], torch.ones(2, 2, 4, 3, device=device), backend=backend)
    torch.testing.assert_close(out, (x.sign().mT @ y.sign()).softmax(dim=-1))
    for gradient, tensor in ((d_x, x), (d_y, y)):
        assert bool((gradient * tensor).abs().max() < 1e-6)


# --- Padding and batches


@on_every_backend
@pytest.mark.parametrize(
    ("rubbish", "normalize"), [(math.nan, False), (math.nan, True), (math.inf, True), (3e38, False)]
)
def test_what_padding_holds_has_no_influence(rubbish: float, normalize: bool, backend: str, device: str) -> None:
    mask = torch.tensor([[True] * 3 + [False] * 6, [False] * 4 + [True] * 5, [True] * 9]).to(device)
    grad, tau = random(3, 2, 4, 5, seed=3).to(device), torch.ones(2, device=device)
    x, y = random(3, 2, 9, 4).to(device), random(3, 2, 9, 5, seed=2).to(device)

    def results(value: float) -> list[Tensor]:
        inputs = [tensor.masked_fill(mask[:, None, :, None], value) for tensor in (x, y)]
        return run(cross_covariance, [*inputs, tau], grad, padding_mask=mask, normalize=normalize, backend=backend)

    clean, dirty = results(0.0), results(rubbish)
    for one, other in zip(clean, dirty, strict=True):
        assert torch.equal(one, other)
        assert bool(one.isfinite().all())
    for gradient in dirty[1:3]:
        assert not gradient[mask[:, None].expand(-1, 2, -1)].any()
        assert bool(gradient[~mask[:, None].expand(-1, 2, -1)].all())
    torch.testing.assert_close(dirty[0][2], torch.full_like(dirty[0][2], 1 / 5))

    # Each sentence as if it were alone and had no padding; the last has nothing but padding.
    for sentence, kept in ((0, slice(3, 9)), (1, slice(0, 4))):
        alone = [tensor[sentence : sentence + 1, :, kept] for tensor in (x, y)]
        options = {"normalize": normalize, "backend": backend}
        out, *gradients = run(cross_covariance, [*alone, tau], grad[sentence : sentence + 1], **options)
        agree([out[0]], [dirty[0][sentence]])
        agree([gradient[0] for gradient in gradients[:2]], [gradient[sentence, :, kept] for gradient in dirty[1:3]])


@on_every_backend
def test_a_sentence_does_not_depend_on_its_batch(backend: str, device: str) -> None:
    x, y = random(3, 1, 300, 4).to(device), random(3, 1, 300, 5, seed=2).to(device)
    grad, tau = random(3, 1, 4, 5, seed=3).to(device), torch.ones(1, device=device)
    together = run(cross_covariance, [x, y, tau], grad, backend=backend)[:3]
    for b in range(3):
        one = slice(b, b + 1)
        alone = run(cross_covariance, [x[one], y[one], tau], grad[one], backend=backend)[:3]
        for our, their in zip(alone, together, strict=True):
            torch.testing.assert_close(our, their[one], rtol=1e-5, atol=1e-6)
        if backend == "triton":  # PyTorch may multiply or add a batch of another size in another order
            assert torch.equal(alone[0], together[0][one])


@on_every_backend
def test_two_runs_are_equal_bit_by_bit(backend: str, device: str) -> None:
    inputs = [random(1, 1, 600, 4).to(device), random(1, 1, 600, 4, seed=2).to(device), torch.ones(1, device=device)]
    grad = random(1, 1, 4, 4, seed=3).to(device)
    first, second = (run(cross_covariance, inputs, grad, backend=backend) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# --- Memory

# From contiguous memory to a view of the same shape with other strides and the same or other values.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "positions outermost": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "heads within positions": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "channels before positions": lambda x: x.mT.contiguous().mT,
    "a third of a projection": lambda x: torch.cat([x, x, x], dim=3).transpose(1, 2).contiguous().transpose(1, 2)[
        ..., x.size(3) : 2 * x.size(3)
    ],
    "every second channel": lambda x: x.repeat_interleave(2, dim=3)[..., ::2],
    "between others": lambda x: torch.nn.functional.pad(x, (1, 2, 3, 1, 1, 1), value=math.nan)[:, 1:-1, 3:-1, 1:-2],
    "one sentence for all": lambda x: x[:1].expand_as(x),
    "one position for all": lambda x: x[:, :, :1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1, :1].expand_as(x),
}  # fmt: skip


@on_every_backend
@pytest.mark.parametrize(
    ("x_view", "y_view", "grad_view"),
    list(zip(VIEWS, [*VIEWS][3:] + [*VIEWS][:3], [*VIEWS][6:] + [*VIEWS][:6], strict=True)),
)
def test_inputs_of_any_strides(x_view: str, y_view: str, grad_view: str, backend: str, device: str) -> None:
    x = VIEWS[x_view](random(2, 2, 7, 4).to(device))
    y = VIEWS[y_view](random(2, 2, 7, 3, seed=2).to(device))
    grad = VIEWS[grad_view](random(2, 2, 4, 3, seed=3).to(device))
    temperature = random(4, seed=4).to(device)[::2]
    mask = (torch.arange(14).view(7, 2).t() > 11).to(device)
    ours = run(cross_covariance, [x, y, temperature], grad, padding_mask=mask, backend=backend)
    exact_inputs = [tensor.double().contiguous() for tensor in (x, y, temperature)]
    agree(ours, run(cross_covariance_naive, exact_inputs, grad.double(), padding_mask=mask))


@on_every_backend
def test_gradients_lie_in_memory_as_the_inputs(backend: str, device: str) -> None:
    """So that what made x and y from (n, B, H·d) needs no copy either."""
    x, y = (VIEWS["positions outermost"](random(2, 2, 7, size).to(device)) for size in (4, 3))
    _, d_x, d_y = run(cross_covariance, [x, y], random(2, 2, 4, 3).to(device), backend=backend)
    assert (d_x.stride(), d_y.stride()) == (x.stride(), y.stride())


@in_the_interpreter
def test_triton_kernels_get_the_inputs_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy, whatever the strides: every kernel gets the address and the strides of x, y, and the padding mask."""
    x = VIEWS["between others"](random(2, 2, 7, 4)).requires_grad_()
    y = VIEWS["channels before positions"](random(2, 2, 7, 3, seed=2)).requires_grad_()
    mask = (torch.arange(14).view(7, 2) > 11).t()
    launched = record_launches(kernels, monkeypatch)
    cross_covariance(x, y, padding_mask=mask, backend="triton").backward(random(2, 2, 4, 3))
    expected = [(x, y), None, (x, y)]  # sum, softmax, gradients
    for arguments, pair in zip(launched, expected, strict=True):
        if pair is None:
            assert "x_ptr" not in arguments
            continue
        for letter, tensor in zip("xy", pair, strict=True):
            assert arguments[f"{letter}_ptr"].data_ptr() == tensor.data_ptr()
            assert tuple(arguments[f"{letter}_{axis}"] for axis in "bhnc") == tensor.stride()
        assert arguments["mask_ptr"].data_ptr() == mask.data_ptr()
        assert (arguments["mask_b"], arguments["mask_n"]) == mask.stride()


@pytest.mark.parametrize(
    ("view", "masked", "dtype"),
    [
        ("contiguous", False, torch.float32),
        ("positions outermost", True, torch.float32),
        ("heads within positions", False, torch.bfloat16),
    ],
)
def test_memory_of_the_torch_backend(view: str, masked: bool, dtype: torch.dtype) -> None:
    """O(n·d): a position more costs nothing forwards, and its two gradients backwards. A copy of x would be seen."""
    heads, channels, lengths = 2, 32, (2048, 4096)

    def costs(operator: Callable[..., Tensor], **options: str) -> list[float]:
        """Numbers that a position and head more costs, forwards and backwards."""
        peaks = []
        for length in lengths:
            x, y = (VIEWS[view](random(2, heads, length, channels, seed=seed)).to(dtype) for seed in (1, 2))
            inputs = [tensor.requires_grad_() for tensor in (x, y)]
            mask = (torch.arange(length) > length - 9).expand(2, -1) if masked else None
            forwards = peak_memory(lambda: operator(*inputs, None, mask, **options))  # noqa: B023
            out = operator(*inputs, None, mask, **options)
            grad = torch.ones_like(out)
            backwards = peak_memory(lambda: torch.autograd.grad(out, inputs, grad))  # noqa: B023
            peaks.append((forwards, backwards))
        numbers = dtype.itemsize * 2 * heads * (lengths[1] - lengths[0])
        return [(more - less) / numbers for less, more in zip(*peaks, strict=True)]

    run(cross_covariance, [random(1, 1, 9, 4)] * 2, random(1, 1, 4, 4))  # whatever PyTorch allocates once
    forwards, backwards = costs(cross_covariance, backend="torch")
    # Half a copy of x: the profiler may confuse the order of two events, so that the copies of two blocks count.
    assert forwards < 0.5 * channels
    assert 2 * channels <= backwards < 2.5 * channels
    forwards, backwards = costs(cross_covariance_naive)
    assert forwards >= 2 * channels
    assert backwards >= 3 * channels


# Sizes that fit, strides that do not: an offset in 32 bits would be negative. Memory never touched costs nothing.
FAR = """
import torch
from amlp_fairseq.ops.amlp_cov import cross_covariance

def far(tensor, axis):
    strides = list(tensor.stride())
    strides[axis] = 2**30
    memory = torch.empty(2**30 * (tensor.size(axis) - 1) + tensor.numel(), dtype=tensor.dtype)
    view = memory.as_strided(tensor.shape, strides)
    return view.copy_(tensor)

torch.manual_seed(1)
def run(x, y, mask):
    inputs = [x.requires_grad_(), y.requires_grad_()]
    out = cross_covariance(*inputs, padding_mask=mask, backend="triton")
    return [out.detach(), *torch.autograd.grad(out, inputs, torch.arange(9).view(3, 3).expand_as(out).half())]
for axis, (batch, heads) in enumerate([(3, 1), (1, 3), (1, 1), (1, 1)]):
    x, y = (torch.randn(batch, heads, 3, 3).half() for _ in range(2))
    mask = torch.tensor([[False, True, False], [False] * 3, [True, False, False]])[:batch]
    near = run(x.clone(), y.clone(), mask)
    mask = far(mask, axis // 2)
    pairs = zip(near, run(far(x, axis), far(y, axis), mask), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), axis
print("no overflow")
"""


@pytest.mark.slow
@in_the_interpreter
def test_offsets_beyond_32_bits() -> None:
    """In a process of its own, which an overflow would end."""
    assert "no overflow" in fresh(sys.executable, "-c", FAR).stdout


# --- torch.compile, mixed types


@pytest.mark.parametrize(("backend", "device"), [("auto", "cpu"), *RUNS])
def test_torch_compile_takes_the_operator_whole(backend: str, device: str, log: pytest.LogCaptureFixture) -> None:
    """The log too, for the first call is the one that logs."""

    def function(x: Tensor, y: Tensor, temperature: Tensor, mask: Tensor) -> Tensor:
        own = cross_covariance(x.sin(), x.sin(), backend=backend)
        return own @ cross_covariance(x, y, temperature.exp(), mask, backend=backend).square()

    def results(function: Callable[..., Tensor]) -> list[Tensor]:
        inputs = [random(2, 2, 9, 4), random(2, 2, 9, 3, seed=2), random(2, seed=3)]
        inputs = [tensor.to(device).requires_grad_() for tensor in inputs]
        out = function(*inputs, torch.arange(9, device=device).expand(2, -1) > 6)
        return [out.detach(), *torch.autograd.grad(out.sum(), inputs)]

    torch.compiler.reset()
    compiled = results(torch.compile(function, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(compiled, results(function))


@on_every_backend
@pytest.mark.parametrize(
    ("view", "normalize", "given"),
    [
        ("contiguous", False, "y"),
        ("positions outermost", True, "y temperature mask"),
        ("a third of a projection", True, "temperature mask"),
    ],
)
def test_custom_operators_keep_torchs_rules(view: str, normalize: bool, given: str, backend: str, device: str) -> None:
    """Requirements of torch.compile and autograd: torch.library's own checks of schema, shapes, strides and
    gradients; without y the operator is x's own covariance."""
    x, y = VIEWS[view](random(2, 2, 5, 4).to(device)), VIEWS[view](random(2, 2, 5, 3, seed=2).to(device))
    optional = {"y": y, "temperature": random(2, seed=3).to(device)}
    optional["mask"] = torch.arange(5, device=device).expand(2, -1) > 3
    other, factor, padding = (tensor if name in given.split() else None for name, tensor in optional.items())
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (x, other, factor)]
    torch.library.opcheck(op._cross_covariance, (*leaves, padding, normalize, backend))
    out, *kept = op._cross_covariance(x, other, factor, padding, normalize, backend)
    arguments = (out.cos(), x, other, factor, padding, *kept, backend)
    torch.library.opcheck(op._cross_covariance_backward, arguments)


@on_every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_with_full_precision_temperature(dtype: torch.dtype, backend: str, device: str) -> None:
    x, y = random(2, 2, 40, 4).to(device, dtype), random(2, 2, 40, 4, seed=2).to(device, dtype)
    temperature, grad = random(2, seed=3).to(device), random(2, 2, 4, 4, seed=4).to(device, dtype)
    ours = run(cross_covariance, [x, y, temperature], grad, backend=backend)
    exact = run(cross_covariance_naive, [tensor.double() for tensor in (x, y, temperature)], grad.double())
    assert [tensor.dtype for tensor in ours] == [torch.float32, dtype, dtype, torch.float32]
    for our, their in zip(ours, exact, strict=True):
        # The temperature's gradient has seen no rounding on its way.
        tolerance = TOLERANCES[dtype if our.dtype == dtype else torch.float32]
        assert (our.double() - their).abs().max() <= tolerance * their.abs().max()


@on_every_backend
def test_autocast_changes_nothing(backend: str, device: str) -> None:
    """It would make the products of float32 inputs half precision."""
    inputs = [random(2, 2, 40, 8).to(device), random(2, 2, 40, 8, seed=2).to(device), random(2, seed=3).to(device)]
    grad = random(2, 2, 8, 8, seed=4).to(device)
    without = run(cross_covariance, inputs, grad, backend=backend)
    with torch.autocast(device, torch.bfloat16):
        under = run(cross_covariance, inputs, grad, backend=backend)
    assert all(torch.equal(one, other) for one, other in zip(without, under, strict=True))


# --- Input that does not fit


def call(**changes: Any) -> Tensor:
    arguments: dict[str, Any] = {"x": random(2, 3, 5, 4), "y": random(2, 3, 5, 6, seed=2)}
    return cross_covariance(**{**arguments, **changes})


BAD = {
    "x of 3 dimensions": ({"x": random(2, 5, 4)}, r"^x .*4 dimensions .*\(2, 5, 4\)"),
    "y of 5 dimensions": ({"y": random(2, 3, 5, 6, 1)}, r"^y .*4 dimensions .*\(2, 3, 5, 6, 1\)"),
    "integer x": ({"x": torch.ones(2, 3, 5, 4, dtype=torch.int64)}, "^x .*int64"),
    "integer y": ({"y": torch.ones(2, 3, 5, 6, dtype=torch.int32)}, "^y .*int32"),
    "no positions": ({"x": random(2, 3, 0, 4), "y": random(2, 3, 0, 6)}, r"^x .*at least one .*\(2, 3, 0, 4\)"),
    "no channels of x": ({"x": random(2, 3, 5, 0)}, r"^x .*at least one .*\(2, 3, 5, 0\)"),
    "no channels of y": ({"y": random(2, 3, 5, 0)}, r"^y .*at least one .*\(2, 3, 5, 0\)"),
    "y of other sentences": ({"y": random(1, 3, 5, 6)}, r"^y .*\(2, 3, 5, 4\), not \(1, 3, 5, 6\)"),
    "y of other heads": ({"y": random(2, 1, 5, 6)}, r"^y .*not \(2, 1, 5, 6\)"),
    "y of another length": ({"y": random(2, 3, 7, 6)}, r"^y .*not \(2, 3, 7, 6\)"),
    "y of another dtype": ({"y": random(2, 3, 5, 6).half()}, r"^y must be torch\.float32 .*not torch\.float16"),
    "temperature for other heads": ({"temperature": torch.ones(2)}, r"^temperature must be \(3,\).*\(2,\)"),
    "temperature as in XCiT": ({"temperature": torch.ones(3, 1, 1)}, r"^temperature .*\(3, 1, 1\)"),
    "integer temperature": ({"temperature": torch.ones(3, dtype=torch.int64)}, "^temperature .*int64"),
    "mask of n, B": ({"padding_mask": torch.ones(5, 2) > 2}, r"^padding_mask must be .*\(2, 5\), not .*\(5, 2\)"),
    "mask of floats": ({"padding_mask": torch.ones(2, 5)}, r"^padding_mask must be torch\.bool .*float32"),
    "y elsewhere": ({"y": random(2, 3, 5, 6).to("meta")}, "^y must be on cpu .*not on meta"),
    "temperature elsewhere": ({"temperature": torch.ones(3, device="meta")}, "^temperature must be on cpu"),
    "mask elsewhere": ({"padding_mask": torch.ones(2, 5, device="meta") > 2}, "^padding_mask must be on cpu"),
    "unknown backend": ({"backend": "cuda"}, "^cross_covariance: backend 'cuda'.* auto, torch, triton"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "match"), BAD.values(), ids=BAD)
def test_input_that_does_not_fit_is_refused(changes: dict[str, Any], match: str) -> None:
    assert call().shape == (2, 3, 4, 6)
    with pytest.raises(ValueError, match=match):
        call(**changes)


# --- Choice of the backend


def test_triton_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"cross_covariance: backend 'triton' .*tensors are on cpu"):
        call(backend="triton")
    monkeypatch.setattr(backends, "TRITON_INSTALLED", False)
    with pytest.raises(RuntimeError, match="triton is not installed"):
        call(backend="triton")


def test_triton_is_refused_for_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match=r"cross_covariance: backend 'triton' .*float64"):
        call(x=random(2, 3, 5, 4).double(), y=random(2, 3, 5, 6).double(), backend="triton")


@pytest.mark.parametrize(("d", "e"), [(129, 4), (4, 200)])
def test_heads_too_large_for_the_kernels_run_on_torch(d: int, e: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x, y = random(1, 2, 6, d), random(1, 2, 6, e, seed=2)
    with pytest.raises(RuntimeError, match=f"'triton' cannot run: heads of {d} and {e} channels have more than 128"):
        call(x=x, y=y, backend="triton")
    torch.testing.assert_close(call(x=x, y=y), cross_covariance_naive(x, y))
    limit = op._triton_limit(x, y)
    monkeypatch.setattr(backends, "TRITON_INSTALLED", True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="A100", major=8, minor=0)
    )
    for given, choice in ((limit, "torch"), ("", "triton")):
        assert backends.choose_backend("auto", torch.device("cuda"), "cross_covariance", given) == choice


def test_auto_runs_on_cpu_tensors_of_every_dtype(log: pytest.LogCaptureFixture) -> None:
    for dtype in TOLERANCES:
        for _ in range(2):
            x, y = random(2, 3, 5, 4).to(dtype), random(2, 3, 5, 4, seed=2).to(dtype)
            assert torch.equal(call(x=x, y=y), call(x=x, y=y, backend="torch"))
    assert len(log.messages) == 1
    assert log.messages[0].startswith("cross_covariance runs on torch for cpu tensors (")
