"""What makes the import of fairseq take half the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

#: fairseq imports functions of these when it is imported, and calls them in two tasks of other kinds.
DEFERRED = ("sklearn", "sklearn.metrics", "scipy.stats")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Imports without collecting garbage, of which they make none; functions of sklearn and scipy that are imported are
    those of a stand-in, which imports the real ones when it is called."""
    collecting = gc.isenabled()
    gc.disable()
    stand_ins = {name: _Deferred(name) for name in DEFERRED if name not in sys.modules}
    for name, stand_in in stand_ins.items():
        sys.modules[name] = stand_in
        package, _, last = name.rpartition(".")
        if package in stand_ins:
            setattr(stand_ins[package], last, stand_in)
    try:
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

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(self.__name__), name)(*args, **kwargs)

        return call
