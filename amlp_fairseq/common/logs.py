"""Logs of the commands of amlp-fairseq: what matters of them is printed beside the results.

Logs of commands that write translations go to standard error, so that standard output has only results.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator

#: In the environment of the processes that a command with --verbose starts.
VERBOSE = "AMLP_FAIRSEQ_VERBOSE"
#: Warnings of libraries about each other, by how they begin. None is about what the user does.
NOISE = (
    r"hydra\.experimental\.",
    r"\s*The version_base parameter is not specified",
    r"\s*In '.*': Usage of deprecated keyword in package header",
    r"\s*'.*' is validated against ConfigStore schema",
    r"\s*The strict flag in the compose API is deprecated",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.",
    r"`torch\.jit\.",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
)
#: The commands that write translations.
DECODING = ("generate", "interactive")
#: Commands whose logs are their results, too.
LOGGING = ("train", "validate", "eval-lm", "preprocess")


def take_verbose(words: list[str]) -> tuple[list[str], bool]:
    """A command line without ``--verbose``, wherever it stands, and whether it is to be verbose."""
    return [word for word in words if word != "--verbose"], "--verbose" in words or os.environ.get(VERBOSE) == "1"


@contextlib.contextmanager
def readable(name: str, verbose: bool) -> Iterator[None]:
    """The context in which a command runs, see the top of this file.

    Args:
        name: of the command.
        verbose: show the warnings of :data:`NOISE`, the logs that are a whole configuration or model, and those of this
            package where a command shows no others.
    """
    with contextlib.ExitStack() as stack:
        if verbose:
            stack.callback(os.environ.pop, VERBOSE, None)
            os.environ[VERBOSE] = "1"
        else:
            stack.enter_context(warnings.catch_warnings())
            for message in NOISE:
                warnings.filterwarnings("ignore", message)
        if name in (*DECODING, *LOGGING):
            stack.enter_context(_logging(name, verbose))
        elif verbose:
            stack.enter_context(_own_logs())
        if name in DECODING and sys.stdout.isatty() and sys.stderr.isatty():
            stack.enter_context(_lines_above_the_bar())
        yield


@contextlib.contextmanager
def _own_logs() -> Iterator[None]:
    """Print the package's own logs, such as what decodes, to standard error."""
    logger, handler = logging.getLogger("amlp_fairseq"), logging.StreamHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextlib.contextmanager
def _logging(name: str, verbose: bool) -> Iterator[None]:
    """Handle all logs; fairseq leaves handlers alone that are there."""
    handlers = [_AboveTheBar(sys.stderr if name in DECODING else sys.stdout)]
    if name in DECODING:  # how long it took is a result
        handlers[0].addFilter(lambda record: not _is_result(record))
        handlers.append(_AboveTheBar(sys.stdout))
        handlers[1].addFilter(_is_result)
    for handler in handlers:
        if not verbose:
            handler.addFilter(_is_readable)
        handler.setFormatter(
            logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S")
        )
    root = logging.getLogger()
    before = root.handlers, root.level
    root.handlers = [*handlers]
    root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
    try:
        yield
    finally:
        root.handlers, root.level = before


def _is_result(record: logging.LogRecord) -> bool:
    return record.name == "fairseq_cli.generate" and str(record.msg).startswith("Translated ")


#: Beginnings of logs that say nothing to users. Of each checkpoint that is saved there are four; tracebacks are of
#: errors that fairseq raises when it has logged them, as of a checkpoint that cannot be written.
UNREADABLE = (
    "Traceback (most recent call last)",
    *("Please install tensorboardX", "--user-dir=", "Preparing to save checkpoint", "Saving checkpoint to"),
    *("Finished saving checkpoint to", "Saved checkpoint"),
)


def above_the_bar() -> contextlib.AbstractContextManager[None]:
    """The context in which something is written to the terminal that has a bar of progress, if there is one."""
    if "tqdm" not in sys.modules:  # it takes a while, and is not needed where there is no bar
        return contextlib.nullcontext()
    from tqdm import tqdm

    return tqdm.external_write_mode(file=sys.stderr)  # type: ignore[no-any-return]


def _is_readable(record: logging.LogRecord) -> bool:
    """fairseq logs whole configurations and models, as objects."""
    return isinstance(record.msg, str) and not record.msg.startswith(UNREADABLE)


class _AboveTheBar(logging.StreamHandler):  # type: ignore[type-arg]
    def emit(self, record: logging.LogRecord) -> None:
        with above_the_bar():
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Raise the error, as of a reader that has gone or a full disk; logging would print it for every line."""
        error = sys.exc_info()[1]
        if error is not None:
            raise error


class _Lines(io.TextIOWrapper):
    """Standard output on the terminal that has the bar: a line makes room for itself."""

    def write(self, text: str) -> int:
        if "\n" not in text:  # waits for the rest of its line
            return super().write(text)
        with above_the_bar():
            return super().write(text)


@contextlib.contextmanager
def _lines_above_the_bar() -> Iterator[None]:
    before = sys.stdout
    before.flush()
    file = io.BufferedWriter(io.FileIO(before.fileno(), "w", closefd=False))
    with _Lines(file, encoding=before.encoding, errors=before.errors, line_buffering=True) as sys.stdout:
        try:
            yield
        finally:
            sys.stdout = before
