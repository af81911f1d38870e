"""Keep the memory that decoding steps free in the process.

A step's logits take megabytes (rows times entries of the dictionary); they are freed at its end and allocated again in
the next step. By default glibc returns such blocks to the system, which has to clear every page of the next ones.
"""

from __future__ import annotations

import ctypes

#: The most bytes that are kept.
KEPT = 1 << 30
#: Parameters of mallopt (malloc.h): the sizes from which free memory at the end of the heap is returned, and from which
#: blocks get pages of their own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let this process keep up to ``KEPT`` bytes that it has freed. It does nothing where malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(threshold, KEPT)
