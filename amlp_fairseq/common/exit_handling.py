"""How a command ends that cannot go on: behind a whole line, with the status that shells know, without a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

#: What a write to a full disk, or beyond a quota or limit, fails with.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Bytes of a line that are looked through for its beginning.
LONGEST = 1 << 24


@contextlib.contextmanager
def clear_endings(name: str, at_once: bool = False) -> Iterator[None]:
    """What a command runs in.

    - SIGINT, SIGTERM and SIGHUP end its child processes, and then itself by the same signal: shells show 130, 143 and
      129, and leave their loops.
    - A reader that closes its pipe ends it by SIGPIPE: 141.
    - A full disk is one line that names the file, and status 1; a line of which it took a part is removed.
    - What it prints is UTF-8, whatever the locale is; names of files keep their bytes.
    - Where standard error is closed, messages go nowhere, and no file is opened in its place.

    Args:
        name: of the command, for its messages.
        at_once: leave SIGTERM and SIGHUP to the system, also in the middle of a line: a training that waits in C++ for
            another process would not hear of them before that one answers.

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
    before = {number: signal.getsignal(number) for number in _SIGNALS[: 1 if at_once else 3]}
    handle_error, end = logging.Handler.handleError, _ending(name)
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):  # not those that nohup has turned off
            signal.signal(number, end)
            _handled.append(number)
    logging.Handler.handleError = _raise_again  # type: ignore[assignment,method-assign]
    checkpoints = logging.getLogger("fairseq.checkpoint_utils")
    checkpoints.addFilter(_is_not_of_a_full_disk)
    try:
        yield
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _has_lost_its_reader():
            _die_of(signal.SIGPIPE)
        full = _full_disk(error)
        if full is None:
            raise
        _remove_half_line()
        _say(f"{name}: {full.strerror}" + (f": {full.filename}" if full.filename else ""))
        _remove_half_line()  # where standard error is the same file
        _forget_what_is_not_written()
        sys.exit(1)
    finally:
        checkpoints.removeFilter(_is_not_of_a_full_disk)
        logging.Handler.handleError = handle_error  # type: ignore[method-assign]
        _handled.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def whole_lines(path: Path) -> Iterator[TextIO]:
    """A file of text that is written line by line. The error of a full disk names it, and leaves whole lines in it."""
    with path.open("w", encoding="utf-8", buffering=1) as file:
        try:
            yield file
        except OSError as error:
            if error.errno in FULL:
                error.filename = error.filename or str(path)
                _remove_half_line(file.fileno())
                _write_nowhere(file)
            raise


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Those that the command handles at present.
_handled: list[int] = []
_masks: list[set[int | signal.Signals]] = []


def _hold_signals() -> None:
    _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, _handled))


def _let_signals_come() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _leave_signals_to_the_system() -> None:
    """Forked workers die of them. A pool ends them by SIGTERM, and Python forgets a signal that reaches a process while
    it is forked: the pool would wait for ever."""
    for number in _handled:
        signal.signal(number, signal.SIG_DFL)
    _let_signals_come()
    if _handled:
        sys.excepthook = _unless_orphaned(os.getppid(), sys.excepthook)


def _unless_orphaned(parent: int, hook: Any) -> Any:
    """What prints the exceptions of a worker, but not those by which it notices that its parent has died."""

    def printed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, (ConnectionError, EOFError)):
            for _ in range(100):  # connections are closed before a process is gone
                if os.getppid() != parent:
                    return
                time.sleep(0.01)
        hook(kind, error, trace)

    return printed


os.register_at_fork(
    before=_hold_signals,
    after_in_parent=_let_signals_come,
    after_in_child=_leave_signals_to_the_system,
)


def _ending(name: str) -> Any:
    """The handler of signals. Python calls it between two prints: what has been printed are whole lines."""

    def end(number: int, frame: object) -> None:
        for child in _children(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGTERM)
        if number == signal.SIGINT:
            _say(f"{name}: interrupted")
        _die_of(number)

    return end


def _children(parent: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent:
                yield int(path.parent.name)


def _die_of(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(line: str) -> None:
    """Print to standard error, which a handler may not do by way of ``sys.stderr``."""
    with contextlib.suppress(OSError):
        os.write(2, (("\n" if os.isatty(2) else "") + line + "\n").encode())


def _raise_again(handler: logging.Handler, record: logging.LogRecord) -> None:
    """In place of ``Handler.handleError``, which prints a traceback for every line that cannot be logged."""
    error = sys.exc_info()[1]
    if error is not None:
        raise error


def _is_not_of_a_full_disk(record: logging.LogRecord) -> bool:
    """fairseq logs the traceback of a checkpoint that cannot be written."""
    error = sys.exc_info()[1]
    return error is None or _full_disk(error) is None


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


def _remove_half_line(output: int = 1) -> None:
    """Cut a file that is written behind its last whole line, if nobody else has written more."""
    with contextlib.suppress(OSError):
        found = os.fstat(output)
        if not stat.S_ISREG(found.st_mode) or os.lseek(output, 0, os.SEEK_CUR) != found.st_size:
            return
        with open(f"/proc/self/fd/{output}", "rb") as file:
            begin = file.seek(max(0, found.st_size - LONGEST))
            end = begin + file.read(LONGEST).rfind(b"\n") + 1
        if begin > 0 and end == begin:
            return
        os.ftruncate(output, end)
        os.lseek(output, end, os.SEEK_SET)


def _forget_what_is_not_written() -> None:
    """Python would try to write it again when it ends, and fail again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError):
            _write_nowhere(stream)


def _write_nowhere(stream: TextIO) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
