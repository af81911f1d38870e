"""The import of fairseq: whichever distribution provides it, in half the time; or a clear word on what to install."""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

BUILD = (
    'pip install "setuptools>=77,<82" wheel cython numpy && '
    "pip install --no-build-isolation fairseq-fixed==0.12.3.1 (in a checkout scripts/install.sh does it all)"
)
WITHOUT_COMPILER = (
    "there is no C++ compiler (g++) here to build it: install one, or a wheel that scripts/build_wheels.sh has made "
    "elsewhere (pip install --find-links FOLDER fairseq-fixed==0.12.3.1)"
)
#: fairseq imports functions of these when it is imported, and calls them in two tasks of other kinds.
DEFERRED = ("sklearn", "sklearn.metrics", "scipy.stats")


def require() -> None:
    """Import fairseq.

    Raises:
        ImportError: saying what to install, where there is none, or one that this Python cannot import.
    """
    try:
        with quick_imports(), _without_logging_setup():
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
    """Instructions for installing fairseq on this machine."""
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


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import without collecting garbage, of which imports make none; functions of sklearn and scipy that are imported
    are those of a stand-in, which imports the real ones when it is called. TorchScript's deprecation is not warned of:
    fairseq uses it."""
    collecting = gc.isenabled()
    gc.disable()
    stand_ins = {name: _Deferred(name) for name in DEFERRED if name not in sys.modules}
    for name, stand_in in stand_ins.items():
        sys.modules[name] = stand_in
        package, _, last = name.rpartition(".")
        if package in stand_ins:
            setattr(stand_ins[package], last, stand_in)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # by torch 2.14
            yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
        if collecting:
            gc.enable()


class _Deferred(ModuleType):
    """A module of which every name is a function."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: object, **kwargs: object) -> Any:
            return getattr(import_module(self.__name__), name)(*args, **kwargs)

        return call
