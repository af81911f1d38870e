"""The tensors of a safetensors file as NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary, finalize

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

_TYPES = {
    **{"F32": np.float32, "F16": np.float16, "BF16": np.uint16},
    **{"I8": np.int8, "I64": np.int64, "I32": np.int32, "U16": np.uint16},
}


class Tensors(Mapping[str, Array]):
    """The tensors of a file by name; float16 and bfloat16 become float32.

    Each is read when it is asked for, so that a large file is never in memory as a whole. While an array is in use,
    asking for it again gives the same one.

    Raises:
        ValueError: if the file is damaged; names it.
    """

    def __init__(self, path: Path) -> None:
        self._file, size = path.open("rb"), path.stat().st_size
        finalize(self, self._file.close)
        try:
            self._start = 8 + int.from_bytes(self._file.read(8), "little")
            if self._start > size:
                raise ValueError(f"a header of {self._start} bytes in {size}")
            header = json.loads(self._file.read(self._start - 8))
            self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            for entry in self._entries.values():
                _check(entry, size - self._start)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        self._in_use: WeakValueDictionary[str, Array] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Array:
        found = self._in_use.get(name)
        if found is None:
            self._in_use[name] = found = self._read(self._entries[name])
        return found

    def _read(self, entry: Mapping[str, Any]) -> Array:
        self._file.seek(self._start + entry["data_offsets"][0])
        values = np.fromfile(self._file, _TYPES[entry["dtype"]], prod(entry["shape"])).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32) if entry["dtype"] == "F16" else values


def _check(entry: Mapping[str, Any], size: int) -> None:
    """Raise ValueError, TypeError or KeyError for a tensor that is not in so many bytes of data."""
    (begin, end), shape = entry["data_offsets"], entry["shape"]
    if not 0 <= begin <= end <= size:
        raise ValueError(f"offsets {begin} to {end} of {size} bytes")
    if any(not 0 <= length <= size for length in shape):
        raise ValueError(f"a shape of {shape}")
    if prod(shape) * np.dtype(_TYPES[entry["dtype"]]).itemsize != end - begin:
        raise ValueError(f"{end - begin} bytes of {entry['dtype']} for a shape of {shape}")
