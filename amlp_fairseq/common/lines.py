"""Lines of text files; only a line feed ends one."""

from __future__ import annotations

import contextlib
import gzip
import logging
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

logger = logging.getLogger(__name__)


def buffered_read(input: str, buffer_size: int) -> Iterator[list[str]]:
    """The lines of a file, or of standard input for "-", ``buffer_size`` at a time and stripped."""
    lines = read_lines(input)
    while buffer := [line.strip() for line in islice(lines, buffer_size)]:
        yield buffer


def read_lines(input: str) -> Iterator[str]:
    """The lines of a file, or of standard input for "-", with their ends."""
    if input == "-":
        refuse_closed_input()
    with contextlib.nullcontext(sys.stdin.buffer) if input == "-" else open(input, "rb") as file:
        for number, line in enumerate(file, 1):
            yield _decoded(line, number)


def refuse_closed_input() -> None:
    """Raise ValueError where there is no standard input."""
    if sys.stdin is None:
        raise ValueError("standard input is closed: name the text with --input FILE")


def _decoded(line: bytes, number: int) -> str:
    encoding = "utf-8-sig" if number == 1 else "utf-8"
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        logger.warning("line %d has bytes that are not UTF-8; each is read as the character U+FFFD", number)
        return line.decode(encoding, errors="replace")


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, which may be compressed; only a newline ends a line."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        try:
            yield from decoded(file, str(path))
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: {error}") from None


def decoded(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a binary file.

    Raises:
        ValueError: for bytes that are not UTF-8; names the file and the line.
    """
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None


def count_lines(path: Path) -> int:
    """The number of lines of a file; the last one need not end with a line feed."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
