"""Commands in processes of their own: sentences that fairseq-generate has written so far, and the error of one that
failed."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from amlp_fairseq.common.progress import SILENCE, counter, pace


@contextlib.contextmanager
def watching(name: str, outputs: Sequence[Path], sentences: int) -> Iterator[None]:
    """Show what is in these files: on a terminal once a second as a bar, otherwise once a minute as a line, both on
    standard error.

    Args:
        name: what is being decoded.
        outputs: files of fairseq-generate, which may not be there yet, and lose the suffix ``.part`` when whole.
        sentences: how many they will have.
    """
    visible = sys.stderr.isatty()
    bar = counter(visible, total=sentences, desc=name, unit=" sentences")
    ended, begun = threading.Event(), [0] * len(outputs)

    def watch() -> None:
        said = time.monotonic()
        while not ended.wait(1):
            for number, output in enumerate(outputs):
                begun[number], found = count(output, begun[number])
                bar.update(found)
            if not visible and time.monotonic() - said >= SILENCE:
                said = time.monotonic()
                print(f"{name}: {', '.join(pace(bar, 'sentences'))}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        bar.close()


def count(output: Path, begin: int) -> tuple[int, int]:
    """Sentences in the whole lines of a file from a byte on, and the byte behind them: ``end, sentences``."""
    with contextlib.suppress(FileNotFoundError):
        path = output if output.exists() or output.suffix != ".part" else output.with_suffix("")
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        return begin + len(whole), (b"\n" + whole).count(b"\nS-")
    return begin, 0


def failed(command: str, status: int, printed: str, log: Path | None = None) -> ChildProcessError:
    """The error that tells the last line of what the command has printed, and in which file the rest is."""
    last = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")
    where = f", see {log}" if log else ""
    return ChildProcessError(f"{command}: status {status}{where}" + (f": {last}" if last else ""))
