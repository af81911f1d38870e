"""Binarised text, ``train.en-de.en.idx`` and ``.bin``: files that are damaged are named.

Of a file that is cut off fairseq says "buffer is smaller than requested size" when it comes to the sentence, or reads
whatever is in memory.
"""

from __future__ import annotations

import functools
import os
import struct
from typing import Any

import numpy as np
from fairseq.data import indexed_dataset
from fairseq.data.huffman import HuffmanMMapIndex

MMAP = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
TORCHNET = indexed_dataset.IndexedDataset._HDR_MAGIC


def install() -> None:
    """Look at the files before fairseq opens them."""
    make_dataset = indexed_dataset.make_dataset

    @functools.wraps(make_dataset)
    def make_checked_dataset(path: str, impl: str, *args: Any, **kwargs: Any) -> Any:
        if impl in ("mmap", "cached", "lazy") and indexed_dataset.IndexedDataset.exists(path):
            check(path)
        return make_dataset(path, impl, *args, **kwargs)

    indexed_dataset.make_dataset = make_checked_dataset


def check(path: str) -> None:
    """Whether the index ``path.idx`` is whole and ``path.bin`` has what it points to.

    Raises:
        ValueError: naming the file that is not.
    """
    index, data = indexed_dataset.index_file_path(path), indexed_dataset.data_file_path(path)
    with open(index, "rb") as file:
        head = file.read(48)
    if head.startswith(MMAP):
        header, layout = 26, "<BQ"
    elif head.startswith(TORCHNET):
        header, layout = 48, "<QQQQ"
    elif head.startswith(HuffmanMMapIndex._HDR_MAGIC[:8]):
        return
    else:
        raise ValueError(f"{index} is damaged, or no index of binarised text: it begins with {head[:8]!r}")
    if len(head) < header:
        raise ValueError(f"{index} is cut off: it has {len(head)} bytes, its header has {header}")
    fields = struct.unpack(layout, head[header - struct.calcsize(layout) : header])
    if fields[0] not in indexed_dataset._code_to_dtype:
        raise ValueError(f"{index} is damaged: it has a data type {fields[0]}, which does not exist")
    sentences = fields[1] if header == 26 else fields[2]
    needed = header + (12 * sentences if header == 26 else 8 * (2 * (sentences + 1) + fields[3]))
    if os.path.getsize(index) < needed:
        raise ValueError(
            f"{index} is damaged or cut off: it has {os.path.getsize(index)} bytes, {sentences} sentences need {needed}"
        )
    with open(index, "rb") as file:
        file.seek(header)
        if header == 26:
            sizes = np.fromfile(file, np.int32, sentences).astype(np.int64)
            begins = np.fromfile(file, np.int64, sentences)
            ends = begins + sizes * np.dtype(indexed_dataset._code_to_dtype[fields[0]]).itemsize
        else:
            dimensions = np.fromfile(file, np.int64, sentences + 1)
            begins = np.fromfile(file, np.int64, sentences + 1)
            ends = begins * fields[1]
            sizes = np.concatenate([np.diff(dimensions), np.diff(begins), np.fromfile(file, np.int64, fields[3])])
    if min(sizes.min(initial=0), begins.min(initial=0), ends.min(initial=0)) < 0:
        raise ValueError(f"{index} is damaged: it has a sentence of negative length or place")
    if ends.max(initial=0) > os.path.getsize(data):
        raise ValueError(
            f"{data} is cut off, or not that of its index: it has {os.path.getsize(data)} bytes, "
            f"{ends.max(initial=0)} are needed"
        )
