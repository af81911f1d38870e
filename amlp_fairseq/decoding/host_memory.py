"""Memory that decoding steps free stays with the process.

A step's logits are megabytes (rows times words of the dictionary), are freed at its end and wanted again at once. glibc
gives such blocks back to the system, which has to clear every page of the next ones.
"""

from __future__ import annotations

import ctypes

#: The most bytes that are kept.
KEPT = 1 << 30
#: Of malloc.h: free memory at the end of the heap that is given back, and blocks that have pages of their own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let this process keep up to ``KEPT`` bytes that it has freed. It does nothing where malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(threshold, KEPT)
