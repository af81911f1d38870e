"""fairseq-interactive reads a line where there is a line feed, and survives every byte; it and fairseq-generate print
line by line.

fairseq's own reading ends a line at a carriage return, too, which shifts all later outputs, dies of bytes that are not
UTF-8, and takes a byte-order mark for a part of the first word. What it prints to a file or a pipe leaves in blocks, or
with PYTHONUNBUFFERED in parts of lines: a process that is killed has begun a line, and lost those before it.
"""

from __future__ import annotations

import io
import sys

from amlp_fairseq.common.lines import buffered_read


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
