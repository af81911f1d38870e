"""How much memory a call takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler._utils import traverse_dfs


def peak_memory(function: Callable[[], Any]) -> int:
    """Most bytes that ``function`` holds at once, those inside PyTorch's own operators too, beyond those before it.

    What is allocated before and freed meanwhile does not count: the profiler may have its size wrong.
    """
    gc.collect()
    gc.freeze()  # the next call need not look again at what stays
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    assert profiler.profiler is not None
    tree = profiler.profiler.kineto_results.experimental_event_tree()
    events = [event for event in traverse_dfs(tree) if event.tag == _EventType.Allocation]
    assert events
    blocks: dict[int, int] = {}
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_time_ns):
        fields = event.extra_fields
        if fields.alloc_size > 0:
            blocks[fields.ptr] = fields.alloc_size
            held += fields.alloc_size
        else:
            held -= blocks.pop(fields.ptr, 0)
        peak = max(peak, held)
    return peak
