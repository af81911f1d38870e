"""CUDA graphs of what a model does again and again: hundreds of kernels become one launch.

A GPU finishes the kernels of a small batch sooner than a processor can launch them. A graph launches them all, but only
ever the same ones on the same memory. So sizes are rounded up to a shape, what is behind them is hidden, and whatever
changes from one run to the next is in the device's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Devices with graphs.
CAPTURING = ("cuda",)
#: Graphs that are kept: the shapes of the last batches.
KEPT = 8
#: Positions of sources, and of targets in a pass through all, are rounded up to a multiple of this.
POSITIONS = 32


def check_device(model: Any, able: bool, needed: str) -> None:
    """Raise ValueError that says what ``--cuda-graphs`` is for, unless the model is ``able`` and its device is."""
    device, name = next(model.parameters()).device.type, type(model.decoder).__name__
    if not able or device not in CAPTURING:
        raise ValueError(f"--cuda-graphs is for {', '.join(CAPTURING)} and {needed}, not for {name} on {device}")


class Graphs:
    """The graphs of the shapes that were used last."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def get(self, shape: Any, make: Callable[[], Any]) -> Any:
        """What was made for a shape, or is made now."""
        graph = self.kept.pop(shape, None) or make()
        self.kept[shape] = graph  # in the order of their last use
        if len(self.kept) > KEPT:
            del self.kept[next(iter(self.kept))]
        return graph


def capture(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """A graph of what ``run`` does, as a function that does it again, and the result, overwritten each time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # kernels are chosen and compiled in the first runs
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


def power_of_two(count: int) -> int:
    """The next one that is not less."""
    return 1 << (count - 1).bit_length()


def rounded(positions: int) -> int:
    """The next multiple of ``POSITIONS`` that is not less."""
    return -(-positions // POSITIONS) * POSITIONS
