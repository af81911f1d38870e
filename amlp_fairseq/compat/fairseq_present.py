"""fairseq itself: whichever distribution provides it, or a clear word on what to install."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

INSTALL = "pip install --no-build-isolation fairseq-fixed==0.12.3.1 (scripts/install.sh does it)"


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
        raise ImportError(f"amlp_fairseq needs fairseq, which is not installed: {INSTALL}", name="fairseq") from None
    except (ValueError, AttributeError, TypeError) as error:
        # PyPI's fairseq 0.12.2: ValueError, its dataclasses have mutable defaults, which Python 3.11 refuses.
        version = ".".join(map(str, sys.version_info[:2]))
        message = f"this fairseq cannot be imported on Python {version} ({error}); one that can: {INSTALL}"
        raise ImportError(message, name="fairseq") from error


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
