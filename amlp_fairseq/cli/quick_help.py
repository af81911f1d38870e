"""Help without any library: the parsers of commands are made with stand-ins for what only their work needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Parts of the plugin that the parsers do not need.
NOT_NEEDED = {
    f"amlp_fairseq.{name}"
    for name in "attention compat criterions data decoding models ops plugin search tasks".split()
}


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within it, imports of what is not needed give stand-ins. Those, and what was imported with them, are forgotten at
    the end."""
    before = {*sys.modules}
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    try:
        yield
    finally:
        del sys.meta_path[0]
        for name in sys.modules.keys() - before:
            module, (package, _, last) = sys.modules[name], name.rpartition(".")
            if name.startswith("amlp_fairseq.") or vars(module).get("__getattr__") is _stand_in:
                del sys.modules[name]
                if package in sys.modules:
                    vars(sys.modules[package]).pop(last, None)


class _Finder:
    """Finds and makes the modules of stand-ins."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top, *rest = name.split(".")
        needed = top in sys.stdlib_module_names
        if top == "amlp_fairseq":
            needed = ".".join([top, *rest[:1]]) not in NOT_NEEDED
        return None if needed else ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _stand_in  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has no code."""


class _StandIn:
    """Any function, class or value of a module that is not there; definitions that use it go through."""

    __dataclass_fields__: dict[str, Any] = {}  # noqa: RUF012 - where it stands for a class

    def __call__(self, *args: object, **kwargs: object) -> _StandIn:
        return self

    __getitem__ = __or__ = __ror__ = __call__

    def __getattr__(self, name: str) -> _StandIn:
        return _stand_in(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: object) -> tuple[()]:
        return ()


def _stand_in(name: str) -> _StandIn:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn()
