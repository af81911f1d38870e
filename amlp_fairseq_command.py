"""The command amlp-fairseq: what is missing, and Ctrl-C while everything is imported, end it without a traceback; help
and version come without importing torch and fairseq.

Not in the package, whose import takes seconds, and fails where fairseq is missing.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: What is answered without torch and fairseq, wherever it stands in the line.
QUICK = {"-h", "--help", "--version"}
#: Packages that the parsers of command lines need; of all others that are not Python's they get stand-ins.
NEEDED = {"amlp_fairseq_command", "omegaconf", "antlr4", "attr", "yaml"}
#: Parts of the plugin that they do not need.
NOT_NEEDED = {f"amlp_fairseq.{name}" for name in "attention compat criterions data decoding models ops search".split()}
NOT_NEEDED |= {"amlp_fairseq.ops.generation_order", "amlp_fairseq.tasks"}


def main() -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # not where nohup has turned it off
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = sys.argv[1:] or ["--help"]
    if QUICK & {*words} or words == ["path"]:
        given = sys.argv[:]
        with suppress(Exception), without_fairseq():  # where a stand-in will not do, it takes seconds
            from amlp_fairseq.cli.main import quick_answer

            quick_answer(words)
        sys.argv = given
    try:
        from amlp_fairseq.cli.main import main as command
    except ImportError as error:
        # Raised by common/versions.py and compat/fairseq_present.py; any other is a bug, with a traceback.
        if error.name not in ("Python", "torch", "numpy", "fairseq"):
            raise
        sys.exit(f"amlp-fairseq: {error}")
    signal.signal(signal.SIGINT, interrupt)
    command()


@contextmanager
def without_fairseq() -> Iterator[None]:
    """Imports of ``amlp_fairseq`` that do not run its ``__init__.py``, with stand-ins for what only the work of a
    command needs. Those, and what was imported with them, are forgotten at the end."""
    found = find_spec("amlp_fairseq")
    assert found is not None
    package = ModuleType("amlp_fairseq")
    package.__path__ = found.submodule_search_locations or []  # type: ignore[assignment]
    sys.modules["amlp_fairseq"] = package
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    try:
        yield
    finally:
        del sys.meta_path[0]
        for name, module in [*sys.modules.items()]:
            if name.partition(".")[0] == "amlp_fairseq" or vars(module).get("__getattr__") is _stand_in:
                del sys.modules[name]


class _Finder:
    """Finds and makes the modules of stand-ins."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top, *rest = name.split(".")
        needed = top in sys.stdlib_module_names or top in NEEDED
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

    def __call__(self, *args: Any, **kwargs: Any) -> _StandIn:
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
