"""The memory that a process on a CPU frees: what it keeps, and when it gives that back.

A step's logits take megabytes (rows times entries of the dictionary); they are freed at its end and allocated again in
the next step. By default glibc returns such blocks to the system, which has to clear every page of the next ones.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

#: Products in bfloat16 that are kept, twice those of a Transformer's update, and several times those of a step of
#: decoding. Nearly every batch has a shape of its own, with about 20 products of half a MB each: a thousand do not hold
#: an epoch's.
PRODUCTS = 64
#: The variables of oneDNN and of ideep, the layer between it and PyTorch, which keeps them, too. Both are read when the
#: process first multiplies, and are 1024 by default.
CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
#: The most bytes that are kept.
KEPT = 1 << 30
#: A training keeps blocks up to this size. Logits are larger: with pages of 2 MiB it is quick to get them anew, and
#: kept they leave pieces, for nearly every batch has logits of another size.
KEPT_BY_TRAINING = 32 << 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
#: Parameters of mallopt (malloc.h): the sizes from which free memory at the end of the heap is returned, and from which
#: blocks get pages of their own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: By how much freed pieces may enlarge a process, and the updates between two looks at it: to return them, and to get
#: their pages again, takes as long as up to two thirds of an update of a small model.
PIECES, UPDATES = 1.1, 25


def _glibc(name: str) -> Any:
    """A function of glibc's malloc; None where there is another."""
    return getattr(ctypes.CDLL(None), name, None)


def keep_freed_memory(largest: int = KEPT) -> None:
    """Let this process keep up to ``KEPT`` bytes that it has freed, in blocks of up to ``largest`` bytes. It does
    nothing where malloc is not glibc's."""
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, largest)


def keep_few_products() -> None:
    """Let this process keep ``PRODUCTS`` of the products that oneDNN compiles for a shape, unless the environment says
    how many. It has an effect before the process first multiplies by oneDNN."""
    for name in CAPACITIES:
        os.environ.setdefault(name, str(PRODUCTS))


def use_huge_pages() -> None:
    """Let torch ask for pages of 2 MiB for its large tensors on a CPU: to get freed memory again takes a fraction of
    the time. It has an effect before the process makes its first tensor."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def has_huge_pages() -> bool:
    """True if the system gives huge pages to a process that asks for them."""
    return HUGE_PAGES.exists() and "[never]" not in HUGE_PAGES.read_text(encoding="ascii")


def resident_bytes() -> int:
    """The memory of this process. Linux only."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


class FreedPieces:
    """Gives freed memory back when a process that keeps it has grown by a tenth.

    Blocks of ever other sizes leave pieces between those in use, too small for the next ones. How much a process needs
    is what it holds after the first update, and after each that follows a return: the largest of these.
    """

    def __init__(self) -> None:
        self.trim = _glibc("malloc_trim") if Path("/proc/self/statm").exists() else None
        self.needed, self.updates = 0, 0

    def after_update(self) -> None:
        """Count an update; look at the process after every ``UPDATES``-th. Nothing where malloc is not glibc's."""
        if self.trim is None:
            return
        if self.updates == 0:
            self.needed = max(self.needed, resident_bytes())
        self.updates += 1
        if self.updates >= UPDATES and resident_bytes() > PIECES * self.needed:
            self.trim(0)
            self.updates = 0
