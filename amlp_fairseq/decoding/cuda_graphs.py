"""CUDA graphs: one launch for hundreds of kernels.

A GPU executes the kernels of a small batch faster than a CPU can launch them. A graph launches all of them together,
but always the same kernels on the same buffers. So sizes are rounded up to a shape, the padding is masked, and values
that change from call to call are in device memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch.cuda import _POOL_HANDLE as Pool

#: Device types with graphs.
CAPTURING = ("cuda",)
#: Maximum number of graphs in a model's cache, least recently used dropped first. Multi30k's test set in batches of 256
#: needs 14: finished sentences leave their batch.
MAX_GRAPHS = 16
#: Source positions, and target positions of a non-autoregressive decoder, are rounded up to a multiple of this.
POSITION_MULTIPLE = 32

Graph = TypeVar("Graph")
Result = TypeVar("Result")


def check_device(model: FairseqEncoderDecoderModel, supported: bool, needed: str) -> None:
    """Raise ValueError unless ``--cuda-graphs`` supports the model's decoder (``supported``) and its device; ``needed``
    names the supported decoders."""
    device, name = next(model.parameters()).device.type, type(model.decoder).__name__
    if not supported or device not in CAPTURING:
        raise ValueError(f"--cuda-graphs is for {', '.join(CAPTURING)} and {needed}, not for {name} on {device}")


class Graphs(Generic[Graph]):
    """A cache of the most recently used graphs, by shape, with one memory pool: graphs are replayed one after the
    other, so each may overwrite the results of the rest.

    Args:
        device: device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: Pool | None = None
        self.by_shape: dict[tuple[object, ...], Graph] = {}

    def get(self, shape: tuple[object, ...], make: Callable[[], Graph]) -> Graph:
        """The graph of a shape, which ``make`` makes if it is not in the cache."""
        graph = self.by_shape.pop(shape, None) or make()
        self.by_shape[shape] = graph  # in the order of their last use
        if len(self.by_shape) > MAX_GRAPHS:
            del self.by_shape[next(iter(self.by_shape))]
        return graph

    def capture(self, run: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Capture the kernels of ``run``.

        Returns:
            a function that replays them, and the result of ``run``, which every replay of any graph overwrites.
        """
        replay, result, self.pool = capture(run, self.device, self.pool)
        return replay, result


def capture(
    run: Callable[[], Result], device: torch.device, pool: Pool | None
) -> tuple[Callable[[], None], Result, Pool]:
    """Capture the kernels of ``run`` on a device, whichever is current, with a memory pool of other graphs or None.

    Returns:
        a function that replays them, the result of ``run``, and the pool.
    """
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are chosen and compiled in the first runs
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = run()
    return graph.replay, result, graph.pool()


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()


def rounded(positions: int) -> int:
    """The smallest multiple of ``POSITION_MULTIPLE`` that is at least ``positions``."""
    return -(-positions // POSITION_MULTIPLE) * POSITION_MULTIPLE
