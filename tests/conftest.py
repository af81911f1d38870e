"""Set before any test module is imported, and the fixtures of all operators."""

import gc
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import amlp_fairseq.plugin  # noqa: F401
from amlp_fairseq.ops import backend as backends

# Triton's kernels run on a GPU or, for tests, in Triton's interpreter on a CPU. Triton reads this variable when it is
# imported, before any test could set it. Where there is a GPU the real kernels are what must be tested.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Shells start what runs in the background with Ctrl-C turned off, which the commands of the tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


TESTS = Path(__file__).parent
#: Folders whose tests start processes or train.
SLOW = [
    *(TESTS / name for name in ("end_to_end", "reliability")),
    *(TESTS / "unit" / name for name in ("benchmarks", "corpora", "evaluation", "examples", "training")),
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow folders, before ``-m`` chooses."""
    slow = {path for path in {item.path for item in items} if any(folder in path.parents for folder in SLOW)}
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """The garbage collector need not look again and again at what stays: the tests and all that they import."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the choice of a backend logs, as if nothing had been logged before."""
    backends._log_choice.cache_clear()
    with caplog.at_level(logging.INFO, logger=backends.logger.name):
        yield caplog
    backends._log_choice.cache_clear()


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN: what an implementation reads or returns without having written it is seen."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **options: Any) -> Tensor:
            tensor = make(*arguments, **options)
            return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

        return made

    monkeypatch.setattr(torch, "empty", poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))


@pytest.fixture(scope="module")
def float64() -> Iterator[None]:
    """New tensors and models are in float64, in which two orders of a sum differ by less than any fault: what is
    compared needs no other tolerances than those of ``torch.testing.assert_close``."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module", params=["engine", "PyTorch"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Searches in the engine, where it has the model and the options, and all searches in PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "PyTorch":
            patch.setenv(backends.VARIABLE, "torch")
        yield request.param
