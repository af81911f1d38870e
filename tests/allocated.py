"""The memory that a process has allocated."""

from __future__ import annotations

import ctypes

#: True if the C library tells it: glibc from 2.33 on.
KNOWN = hasattr(ctypes.CDLL(None), "mallinfo2")


class Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def used_bytes() -> int:
    """The bytes of malloc's blocks in use."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
