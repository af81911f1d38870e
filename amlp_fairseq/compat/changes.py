"""Changes of fairseq: what is put into the place of one of its names, or around one of its functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """A name of fairseq, or of a library that it needs, that gets another value.

    Attributes:
        owner: a module or class of fairseq.
        name: which of its names.
        around: functions that get the function whose place they take, and its arguments; the first one gets fairseq's.
        value: what takes the place of any other object.
    """

    owner: Any
    name: str
    around: tuple[Callable[..., Any], ...] = ()
    value: Any = None


def install(changes: Iterable[Change]) -> None:
    """Make changes, each name's once.

    Raises:
        ValueError: if a name is changed twice.
    """
    made = set()
    for change in changes:
        place = getattr(change.owner, "__name__", ""), change.name
        if place in made:
            raise ValueError(f"{'.'.join(place)} is changed twice")
        made.add(place)
        static = isinstance(inspect.getattr_static(change.owner, change.name, None), staticmethod)
        value = change.value
        if change.around:
            value = functools.reduce(_around, change.around, getattr(change.owner, change.name))
        setattr(change.owner, change.name, staticmethod(value) if static else value)


def _around(function: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(function, *args, **kwargs)

    return changed
