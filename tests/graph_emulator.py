"""What a CUDA graph does, on a CPU: the same operators on the same memory, whatever Python would do by now."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.onnx.operators
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amlp_fairseq.decoding import cuda_graph_decoding, cuda_graphs, step_decoder
from amlp_fairseq.ops.backend import VARIABLE

#: What waits for a device, or has a size that depends on its data: no graph can hold it.
REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Callable[[], None]] = []
        #: Tensors that are in the host's memory beside a device, too: shapes, and what is made of them.
        self.host: dict[int, Tensor] = {}

    def shape(self, tensor: Tensor) -> Tensor:
        """In place of ``torch.onnx.operators.shape_as_tensor``, by which fairseq counts positions."""
        result = torch.tensor(tensor.shape)
        self.host |= _memory(result)
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, name = _memory((args, kwargs)).keys(), func.overloadpacket.__name__
        hosts = len(given) > 0 and given <= self.host.keys()
        if name in REFUSED and not hosts:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **kwargs)
        if hosts:
            self.host |= _memory(result)
        written = [tensor for place, tensor in _memory(result).items() if place not in given]

        def kernel() -> None:
            fresh = _memory(func(*args, **kwargs))
            for old, new in zip(written, [x for place, x in fresh.items() if place not in given], strict=True):
                old.copy_(new)

        self.kernels.append(kernel)
        return result


def _memory(tensors: Any) -> dict[int, Tensor]:
    """The dense tensors by the memory that they are in."""
    dense = [x for x in tree_leaves(tensors) if isinstance(x, Tensor) and x.layout == torch.strided]
    return {x.untyped_storage().data_ptr(): x for x in dense}


def install(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have graphs on a CPU, of small shapes; one entry for each that is captured."""
    made: list[Any] = []

    def counted(run: Callable[[], Any], device: torch.device, pool: Any) -> Any:
        made.append(run)
        return capture(run, device, pool)

    monkeypatch.setenv(VARIABLE, "torch")  # a search on CUDA is one in PyTorch
    monkeypatch.setattr(cuda_graphs, "capture", counted)
    monkeypatch.setattr(cuda_graphs, "CAPTURING", ("cpu",))
    for module in (step_decoder, cuda_graph_decoding):
        monkeypatch.setattr(module, "INITIAL_SLOTS", 16)
    monkeypatch.setattr(cuda_graphs, "POSITION_MULTIPLE", 4)
    return made


def capture(
    run: Callable[[], Any], device: torch.device, pool: list[list[Tensor]] | None
) -> tuple[Callable[[], None], Any, Any]:
    """In place of ``cuda_graphs.capture``. Graphs that share a pool overwrite each other's results."""
    assert device.type == "cpu"
    run()
    with _Recorder() as recorder, patch.object(torch.onnx.operators, "shape_as_tensor", recorder.shape):
        result = run()

    pool = [] if pool is None else pool
    own = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
    pool.append(own)

    @torch.no_grad()
    def replay() -> None:
        for results in pool:
            if results is not own:
                for x in results:
                    x.fill_(math.nan)
        for kernel in recorder.kernels:
            kernel()

    return replay, result, pool
