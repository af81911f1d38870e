"""fairseq itself: whichever distribution provides it, or a clear word on what to install."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterator

BUILD = (
    'pip install "setuptools>=77,<82" wheel cython numpy && '
    "pip install --no-build-isolation fairseq-fixed==0.12.3.1 (in a checkout scripts/install.sh does it all)"
)
WITHOUT_COMPILER = (
    "there is no C++ compiler (g++) here to build it: install one, or a wheel that scripts/build_wheels.sh has made "
    "elsewhere (pip install --find-links FOLDER fairseq-fixed==0.12.3.1)"
)


def require() -> None:
    """Import fairseq.

    Raises:
        ImportError: saying what to install, where there is none, or one that this Python cannot import.
    """
    try:
        with _without_logging_setup():
            import fairseq  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise
        raise ImportError(f"amlp_fairseq needs fairseq, which is not installed: {_install()}", name="fairseq") from None
    except (ValueError, AttributeError, TypeError) as error:
        # PyPI's fairseq 0.12.2: ValueError, its dataclasses have mutable defaults, which Python 3.11 refuses.
        version = ".".join(map(str, sys.version_info[:2]))
        message = f"this fairseq cannot be imported on Python {version} ({error}); one that can: {_install()}"
        raise ImportError(message, name="fairseq") from error


def _install() -> str:
    """How to get fairseq on this machine."""
    return BUILD if shutil.which("g++") else WITHOUT_COMPILER


@contextlib.contextmanager
def _without_logging_setup() -> Iterator[None]:
    """Leave logging as the program has it: several of fairseq's tasks configure the root logger when they are imported,
    down to DEBUG, so that the later configuration by fairseq's own commands has no effect."""
    configure = logging.basicConfig
    logging.basicConfig = lambda *args, **kwargs: None
    try:
        yield
    finally:
        logging.basicConfig = configure
