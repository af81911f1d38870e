"""CUDA graphs: hundreds of kernels become one launch.

A GPU executes the kernels of a small batch faster than a CPU can launch them. A graph launches all of them at once, but
always the same kernels on the same buffers. So sizes are rounded up to a shape, the padding that this adds is masked,
and whatever changes from one call to the next is kept in device memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Device types that have graphs.
CAPTURING = ("cuda",)
#: How many graphs a model keeps: those that were used last. Multi30k's test set in batches of 256 needs 14: sentences
#: that are finished leave their batch.
KEPT = 16
#: Positions of sources, and of targets in a pass over all positions, are rounded up to a multiple of this.
POSITIONS = 32


def check_device(model: Any, able: bool, needed: str) -> None:
    """Raise ValueError unless ``--cuda-graphs`` supports the model's decoder (``able``) and its device; ``needed``
    names the supported decoders."""
    device, name = next(model.parameters()).device.type, type(model.decoder).__name__
    if not able or device not in CAPTURING:
        raise ValueError(f"--cuda-graphs is for {', '.join(CAPTURING)} and {needed}, not for {name} on {device}")


class Graphs:
    """A cache of the graphs that were used last, by shape, and the memory pool that they share: they are replayed one
    after the other, so each may overwrite what the others have computed.

    Args:
        device: of the tensors that they compute with.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.pool = device, None
        self.kept: dict[Any, Any] = {}

    def get(self, shape: Any, make: Callable[[], Any]) -> Any:
        """The graph of a shape; ``make`` makes it if it is not in the cache."""
        graph = self.kept.pop(shape, None) or make()
        self.kept[shape] = graph  # in the order of their last use
        if len(self.kept) > KEPT:
            del self.kept[next(iter(self.kept))]
        return graph

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture what ``run`` does: a function that replays it, and its result, which every replay of any of the
        graphs overwrites."""
        replay, result, self.pool = capture(run, self.device, self.pool)
        return replay, result


def capture(run: Callable[[], Any], device: torch.device, pool: Any) -> tuple[Callable[[], None], Any, Any]:
    """Capture what ``run`` does on a device, whichever is the current one, with a memory pool of other graphs or None.

    Returns:
        a function that replays it, its result, and the pool.
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
    """The smallest multiple of ``POSITIONS`` that is at least ``positions``."""
    return -(-positions // POSITIONS) * POSITIONS
