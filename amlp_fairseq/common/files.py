"""Files: checksums, and text that is there whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def writing(*paths: Path) -> Iterator[list[TextIO]]:
    """Open text files under temporary names; all get their own names if the block ends without an error."""
    parts = [path.with_name(path.name + ".part") for path in paths]
    with ExitStack() as stack:
        yield [stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")) for part in parts]
    for part, path in zip(parts, paths, strict=True):
        part.replace(path)
