"""What a process keeps of the memory that it frees, counted by the pages that it is given anew."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import toy

from amlp_fairseq.common import host_memory
from amlp_fairseq.common.host_memory import FreedPieces, has_huge_pages
from amlp_fairseq.decoding import inference_model_cache
from amlp_fairseq.decoding.inference_model_cache import InferenceModelCache

BLOCKS = 32 << 20
PROGRAM = f"""
import resource, sys, torch
from amlp_fairseq.common.host_memory import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
for _ in range(12):  # the first ones find their places
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    first, second = torch.zeros({BLOCKS} // 4), torch.ones({BLOCKS} // 4)
    del first, second
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(*words: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    environment["THP_MEM_ALLOC_ENABLE"] = "0"  # pages of one size
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_freed_blocks_are_kept() -> None:
    pages = 2 * BLOCKS // os.sysconf("SC_PAGESIZE")
    assert new_pages("keep") < pages / 100
    assert new_pages() > pages / 3


def test_final_models_are_made_ready_once_and_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(inference_model_cache, "keep_freed_memory", lambda: calls.append(None))
    model: Any = toy.model(toy.task(num_directions=2))
    inference_models = InferenceModelCache(lambda each: object())
    (first,), (second,) = inference_models([model]), inference_models([model])
    assert first is not second
    assert not calls
    model._is_generation_fast = True  # as in fairseq-generate
    (third,), (fourth,) = inference_models([model]), inference_models([model])
    assert second is not third is fourth
    assert len(calls) == 1


def test_pieces_are_returned_when_a_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes by update; the first one needs 100, the one after a return 150."""
    monkeypatch.setattr(host_memory, "UPDATES", 3)
    monkeypatch.setattr(host_memory, "PIECES", 1.1)
    sizes = [100, 105, 109, 111, 150, 164, 164, 170]
    returned, now = [], [0]
    monkeypatch.setattr(host_memory, "resident_bytes", lambda: sizes[now[0]])
    pieces = FreedPieces()
    pieces.trim = lambda pad: returned.append(now[0])
    for now[0] in range(len(sizes)):
        pieces.after_update()
    assert returned == [3, 7]


RETURNING = f"""
import ctypes, os
from amlp_fairseq.common.host_memory import FreedPieces, keep_freed_memory, resident_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
keep_freed_memory()
pieces = FreedPieces()
pieces.after_update()
blocks = []
for _ in range(32):
    blocks.append(libc.malloc({BLOCKS} // 2))
    ctypes.memset(blocks[-1], 1, {BLOCKS} // 2)
    libc.malloc(64)  # stays, between the blocks
for block in blocks:
    libc.free(block)
before = resident_bytes()
for _ in range(100):
    pieces.after_update()
print(before - resident_bytes())
"""


HUGE = """
import amlp_fairseq.plugin, torch
large = torch.zeros(64 << 18)
print(*[line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")])
"""


@pytest.mark.skipif(not has_huge_pages(), reason="the system has no huge pages")
def test_large_tensors_have_huge_pages() -> None:
    """In a process that imports the plugin before it makes a tensor. It has none otherwise."""
    done = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) >= 2 << 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_returned_pieces_leave_the_process() -> None:
    """32 blocks with something in use between them."""
    done = subprocess.run([sys.executable, "-c", RETURNING], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 0.9 * 32 * BLOCKS / 2
