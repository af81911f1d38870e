"""The weights of a safetensors file as NumPy arrays, by memory map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {
    **{"F32": np.float32, "F16": np.float16, "BF16": np.uint16},
    **{"I8": np.int8, "I64": np.int64, "I32": np.int32, "U16": np.uint16},
}


def load(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a file by name; float16 and bfloat16 become float32, all others are views of the map.

    Raises:
        ValueError: if the file is damaged; names it.
    """
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    try:
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8:start].tobytes())
        return {name: _array(data[start:], entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _array(data: np.ndarray[Any, Any], entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError(f"offsets {begin} to {end} of {len(data)} bytes")
    values = data[begin:end].view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    if entry["dtype"] == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if entry["dtype"] == "F16" else values
