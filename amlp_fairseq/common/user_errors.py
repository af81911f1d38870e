"""Errors of the user: one line that says what is wrong, and no traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import sys
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType

#: The error text of torch for a parameter of another shape.
_MISMATCH = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\((\[[^]]*\])\) from checkpoint, the shape in "
    r"current model is torch\.Size\((\[[^]]*\])\)"
)
#: ``ChildProcessError``: a command that another one has started has failed, and has said why.
_OF_USERS = (ValueError, FileNotFoundError, pickle.UnpicklingError, ChildProcessError)
#: Where fairseq checks options by ``assert`` with a message.
_CHECKING = ("fairseq_cli.", "fairseq.trainer", "fairseq.modules.", "fairseq.data.indexed_dataset")


@contextlib.contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """End with one line and status 1 because of an error of the user, see :func:`describe`, whose traceback
    ``LOGLEVEL=DEBUG`` shows."""
    try:
        yield
    except Exception as error:
        line = describe(error)
        if line is None:
            raise
        _say_where(error)
        sys.exit(f"{command}: {line}")


def describe(error: BaseException) -> str | None:
    """The line that tells a user what is wrong; None for an error that is not the user's, but a bug."""
    text = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        hint = " (fairseq-preprocess writes it)" if re.search(r"dict\.[^/]*\.txt$", str(error.filename)) else ""
        return f"{error.filename} does not exist{hint}"
    if isinstance(error, FileExistsError) and error.filename is None:  # fairseq-preprocess's
        return f"{text} exists: give another folder, or take this one's (fairseq-preprocess --srcdict, --tgtdict)"
    if isinstance(error, FileExistsError):
        return f"{error.filename} exists: give another folder"
    if isinstance(error, OSError) and error.filename is not None and error.errno is not None:
        path = error.filename2 if error.errno == errno.ENOSPC and error.filename2 else error.filename  # of a copy
        return f"{path}: {os.strerror(error.errno)}"
    lacking = re.match(r"Interpolation key 'criterion\.(\w+)' not found", text)
    if lacking:
        option = lacking.group(1).replace("_", "-")
        return f"the model needs --{option}, which this --criterion does not have (CMLMC: --criterion nat_loss)"
    if mismatch := isinstance(error, RuntimeError) and _MISMATCH.search(text):
        return (
            "the checkpoint does not fit: its {} has shape {}, that of the model {} (other dictionaries, or other "
            "options of the model)".format(*mismatch.groups())
        )
    if text.startswith("Cannot load model parameters from checkpoint") and isinstance(error.__context__, ValueError):
        return f"{text.split(';')[0]}: {error.__context__}"
    if isinstance(error, KeyError) and error.__traceback__ is not None:
        frame = _last_frame(error)
        if _is_of(frame, "fairseq_cli.train") and "stats" in frame.f_locals:
            found = ", ".join(sorted(frame.f_locals["stats"]))
            return f"--best-checkpoint-metric {error.args[0]} is none of what validation finds: {found}"
    fairseqs = type(error) in (Exception, OSError)  # what fairseq raises, as for a checkpoint that does not exist
    asserted = isinstance(error, AssertionError) and _is_of(_last_frame(error), *_CHECKING)
    if text and (fairseqs or asserted or isinstance(error, _OF_USERS)):
        return text
    return None


def _say_where(error: BaseException) -> None:
    if os.environ.get("LOGLEVEL", "").upper() == "DEBUG":  # what fairseq's commands look at
        traceback.print_exception(error)


def _last_frame(error: BaseException) -> FrameType:
    return list(traceback.walk_tb(error.__traceback__))[-1][0]


def _is_of(frame: FrameType, *modules: str) -> bool:
    """True if the frame belongs to one of these modules."""
    return str(frame.f_globals.get("__name__")).startswith(modules)


def hide_tracebacks(program: str) -> None:
    """Let a program that is not ours end with one line because of an error of the user."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = describe(error)
        if line is None:
            before(kind, error, trace)
            return
        _say_where(error)
        print(f"{program}: {line}", file=sys.stderr)

    sys.excepthook = hook
