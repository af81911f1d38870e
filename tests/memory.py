"""How much memory a call takes."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import torch


def peak_memory(function: Callable[[], Any]) -> int:
    """Most bytes that ``function`` holds at once, those inside PyTorch's own operators too, beyond those before it."""
    gc.collect()
    gc.disable()  # garbage of before, freed meanwhile, would count
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = function()
    gc.enable()
    del kept
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))
