"""Changes of fairseq: one of its functions is wrapped, or one of its names gets another value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

#: fairseq's function in whose place a wrapper is: the wrapper's first argument.
Stock: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Change:
    """A change of a name in fairseq, or in a library that it needs.

    Attributes:
        target: ``module:name`` or ``module:Class.name``.
        why: what stock does without the change.
        around: the wrapper, which gets the function whose place it takes, and its arguments.
        value: what takes the place of any other object.
    """

    target: str
    why: str
    around: Callable[..., Any] | None = None
    value: Any = None


def install(changes: Iterable[Change]) -> None:
    """Make changes, in this order.

    Raises:
        ValueError: if a name is changed twice.
    """
    made = set()
    for change in changes:
        if change.target in made:
            raise ValueError(f"{change.target} is changed twice")
        made.add(change.target)
        module, _, path = change.target.partition(":")
        *classes, name = path.split(".")
        owner = functools.reduce(getattr, classes, import_module(module))
        static = isinstance(inspect.getattr_static(owner, name, None), staticmethod)
        value = change.value if change.around is None else _wrapped(getattr(owner, name), change.around)
        setattr(owner, name, staticmethod(value) if static else value)


def _wrapped(stock: Stock, around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def wrapped(*args: object, **kwargs: object) -> Any:
        return around(stock, *args, **kwargs)

    return wrapped
