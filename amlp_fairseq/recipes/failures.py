"""The error of a recipe that has started another command, which has failed."""

from __future__ import annotations

from pathlib import Path


def failed(command: str, status: int, printed: str, log: Path | None = None) -> ChildProcessError:
    """The error that tells the last line of what the command has printed, and in which file the rest is."""
    last = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")
    where = f", see {log}" if log else ""
    return ChildProcessError(f"{command}: status {status}{where}" + (f": {last}" if last else ""))
