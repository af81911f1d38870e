"""fairseq-interactive reads a line where there is a line feed, and survives every byte; it and fairseq-generate print
line by line.

fairseq's own reading ends a line at a carriage return, too, which shifts all later outputs, dies of bytes that are not
UTF-8, and takes a byte-order mark for a part of the first word. What it prints to a file or a pipe leaves in blocks, or
with PYTHONUNBUFFERED in parts of lines: a process that is killed has begun a line, and lost those before it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator

logger = logging.getLogger(__name__)


def install() -> None:
    """Replace the reading of fairseq-interactive and flush what it and fairseq-generate print, where one of them is the
    program; called by the plugin's tasks and models."""
    for name in ("fairseq_cli.interactive", "__main__"):
        module = sys.modules.get(name)
        if hasattr(module, "buffered_read") and hasattr(module, "make_batches"):
            module.buffered_read = buffered_read  # type: ignore[union-attr]
    for name in ("fairseq_cli.generate", "__main__"):
        generates = hasattr(sys.modules.get(name), "get_symbols_to_strip_from_output")
        if generates and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True, write_through=False)


def buffered_read(input: str, buffer_size: int) -> Iterator[list[str]]:
    """The lines of a file, or of standard input for "-", ``buffer_size`` at a time and stripped."""
    buffer = []
    if input == "-":
        refuse_closed_input()
    with contextlib.nullcontext(sys.stdin.buffer) if input == "-" else open(input, "rb") as file:
        for number, line in enumerate(file, 1):
            buffer.append(_decoded(line, number).strip())
            if len(buffer) >= buffer_size:
                yield buffer
                buffer = []
    if buffer:
        yield buffer


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
