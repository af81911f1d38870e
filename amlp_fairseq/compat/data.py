"""Changes of ``fairseq.data``: files of binarised text, ``train.en-de.en.idx`` and ``.bin``, that are damaged or of
another dictionary are named; several training sets in one folder.

Of a file that is cut off fairseq says "buffer is smaller than requested size" when it comes to the sentence, or reads
whatever is in memory; a word that the dictionary lacks is an IndexError of an embedding on a CPU, and a failed
assertion of a kernel on a GPU.
"""

from __future__ import annotations

import os
import shlex
import struct
from collections.abc import Sequence
from functools import partial
from types import MethodType
from typing import Any
from weakref import proxy

import numpy as np
from fairseq.data import Dictionary, indexed_dataset
from fairseq.data.huffman import HuffmanMMapIndex

from amlp_fairseq.compat.changes import Stock

MMAP = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
TORCHNET = indexed_dataset.IndexedDataset._HDR_MAGIC


def make_dataset(
    stock: Stock, path: str, impl: str, fix_lua_indexing: bool = False, dictionary: Dictionary | None = None
) -> Any:
    """Look at the files before fairseq opens them, and at their names: stock counts the lines of FASTA files in a
    shell, and finds such files, and the languages in their names, by itself; ``train.$(command)-x.x.fasta`` ran it."""
    if impl == "fasta" and shlex.quote(path) != path:
        raise ValueError(f"{path}: fairseq gives the names of FASTA files to a shell: rename it to letters and digits")
    if impl in ("mmap", "cached", "lazy") and indexed_dataset.IndexedDataset.exists(path):
        dtype = check(path)
        if dictionary is not None and dtype is not None:
            # The older formats count from one.
            check_words(path, dtype, dictionary, first=int(impl != "mmap" and fix_lua_indexing))
    return stock(path, impl, fix_lua_indexing, dictionary)


def concat(stock: Stock, self: Any, datasets: Any, sample_ratios: int | Sequence[float] = 1) -> None:
    """Let the first of several training sets (``train``, ``train1``, …) count once without ``--upsample-primary``, as
    the others do. Stock multiplies it by the option's default, -1, and ends with "negative dimensions are not allowed"
    (fairseq's issue 3644)."""
    if not isinstance(sample_ratios, int):
        sample_ratios = [1 if ratio == -1 else ratio for ratio in sample_ratios]
    stock(self, datasets, sample_ratios)


def check(path: str) -> np.dtype[Any] | None:
    """Check that the index ``path.idx`` is whole and ``path.bin`` has what it points to.

    Returns:
        the type of the numbers in ``path.bin``; None if they are compressed.

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
        return None
    else:
        raise ValueError(f"{index} is damaged, or no index of binarised text: it begins with {head[:8]!r}")
    if len(head) < header:
        raise ValueError(f"{index} is cut off: it has {len(head)} bytes, its header has {header}")
    fields = struct.unpack(layout, head[header - struct.calcsize(layout) : header])
    if fields[0] not in indexed_dataset._code_to_dtype:
        raise ValueError(f"{index} is damaged: it has a data type {fields[0]}, which does not exist")
    dtype = np.dtype(indexed_dataset._code_to_dtype[fields[0]])
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
            ends = begins + sizes * dtype.itemsize
        else:
            dimensions = np.fromfile(file, np.int64, sentences + 1)
            begins = np.fromfile(file, np.int64, sentences + 1)
            ends = begins * fields[1]
            sizes = np.concatenate([np.diff(dimensions), np.diff(begins), np.fromfile(file, np.int64, fields[3])])
    if min(sizes.min(initial=0), begins.min(initial=0), ends.min(initial=0)) < 0:
        raise ValueError(f"{index} is damaged: it has a sentence of negative length or place")
    if not sentences and header == 26:  # an empty file cannot be mapped
        raise ValueError(f"{data} has no sentences")
    if ends.max(initial=0) > os.path.getsize(data):
        raise ValueError(
            f"{data} is cut off, or not that of its index: it has {os.path.getsize(data)} bytes, "
            f"{ends.max(initial=0)} are needed"
        )
    return dtype


def check_words(path: str, dtype: np.dtype[Any], dictionary: Dictionary, first: int = 0) -> None:
    """Check that the dictionary has all words of ``path.bin``; the file is read once, as fairseq does when it opens it.

    Args:
        path: of the files, without their ending.
        dtype: of the numbers in it.
        dictionary: of its words.
        first: the number that stands for the dictionary's first entry.

    Raises:
        ValueError: naming the file and the number that no entry has.
    """
    data = indexed_dataset.data_file_path(path)
    count = os.path.getsize(data) // dtype.itemsize
    if dtype.kind not in "iu" or count == 0:
        return
    numbers = np.memmap(data, dtype, mode="r", shape=(count,))
    for number in (int(numbers.min()) - first, int(numbers.max()) - first):
        if not 0 <= number < len(dictionary):
            raise ValueError(
                f"{data} has a word with number {number}, its dictionary has {len(dictionary)} entries: the file is "
                "damaged, or was binarized with another dictionary (fairseq-preprocess --srcdict, --tgtdict)"
            )


def frozen_batches(stock: Stock, sampler: Any, ordered_batches: MethodType, *arguments: Any, **options: Any) -> None:
    """Let fairseq's iterator of a data set end with its last reference, and its workers with it.

    It is in a cycle with its sampler, which calls it. When the garbage collector finds that, it closes the queues of
    the workers before they are told to end, and then waits 5 seconds for each: at the end of a training, when the next
    thing is loaded. Only the iterator calls the sampler, so that it is there when it is called.
    """
    stock(sampler, ordered_batches, *arguments, **options)
    sampler.ordered_batches = partial(ordered_batches.__func__, proxy(ordered_batches.__self__))
