"""Ends of a command: by a signal, without a reader, on a full disk, with the status that shells know and without a
traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

#: Errors of a write to a full disk, or beyond a quota or limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def clear_endings(name: str, at_once: bool = False) -> Iterator[None]:
    """Run a command.

    - SIGINT, SIGTERM and SIGHUP end its child processes, and then itself by the same signal: shells show 130, 143 and
      129, and leave their loops.
    - A reader that closes its pipe ends it by SIGPIPE: 141.
    - A full disk is one line that names the file, and status 1.
    - What it prints is UTF-8, whatever the locale is, and leaves line by line; names of files keep their bytes.
    - Where standard error is closed, messages go nowhere, and no file is opened in its place.

    Args:
        name: of the command, for its messages.
        at_once: do not handle SIGTERM and SIGHUP: a training that waits in C++ for another process would never run
            the handlers.

    Raises:
        ValueError: where standard output is closed; Python would drop without a word what is printed.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        raise ValueError("standard output is closed: give it a file, or > /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
        if sys.stdout.encoding != "utf-8":
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    command = os.getpid()

    def end(number: int, frame: object) -> None:
        if os.getpid() == command:  # not in a worker that it has forked
            for child in _children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGTERM)
            if number == signal.SIGINT:
                _say(f"{name}: interrupted")
        _die_of(number)

    before = {number: signal.getsignal(number) for number in SIGNALS[: 1 if at_once else 3]}
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):  # not those that nohup has turned off
            signal.signal(number, end)
    try:
        yield
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _has_lost_its_reader():
            _die_of(signal.SIGPIPE)
        full = _full_disk(error)
        if full is None:
            raise
        _say(f"{name}: {full.strerror}" + (f": {full.filename}" if full.filename else ""))
        _forget_what_is_not_written()
        sys.exit(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _children() -> list[int]:
    lists = [path.read_text(encoding="utf-8") for path in Path("/proc/self/task").glob("*/children")]
    return [int(child) for children in lists for child in children.split()]


def _die_of(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(line: str) -> None:
    """Print to standard error, which a handler may not do by way of ``sys.stderr``."""
    with contextlib.suppress(OSError):
        os.write(2, (("\n" if os.isatty(2) else "") + line + "\n").encode())


def _full_disk(error: BaseException | None) -> OSError | None:
    """The error of a full disk that led to this one: torch.save raises another one on top of it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


def _has_lost_its_reader() -> bool:
    poll = select.poll()
    for output in (1, 2):
        poll.register(output, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _forget_what_is_not_written() -> None:
    """Python would try to write it again when it ends, and fail again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
