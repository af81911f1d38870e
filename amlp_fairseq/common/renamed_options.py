"""Renamed options: checkpoints, model folders, recipes, command lines and Python calls may have the former names."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

#: Present names by former ones.
RENAMED = {"words-behind-end": "words-after-end"}
#: The same, also as flags and as Python has them.
_SPELLINGS = {
    spelling(former): spelling(present)
    for former, present in RENAMED.items()
    for spelling in (str, lambda name: f"--{name}", lambda name: name.replace("-", "_"))
}


def present_name(name: str) -> str:
    """The present name of an option: ``words-after-end``, ``--words-after-end`` or ``words_after_end``."""
    return _SPELLINGS.get(name, name)


def with_present_names(options: Mapping[Any, Any]) -> dict[Any, Any]:
    """Options by their present names, also in mappings inside. A value under the present name wins."""
    result: dict[Any, Any] = {}
    for name, value in options.items():
        value = with_present_names(value) if isinstance(value, Mapping) else value
        if name in _SPELLINGS:
            result.setdefault(present_name(name), value)
        else:
            result[name] = value
    return result


def with_present_flags(words: Sequence[str]) -> list[str]:
    """A command line with the present flags; each former one is named once on standard error."""
    result = []
    for word in words:
        flag, *value = word.split("=", 1)
        if flag.startswith("--") and flag in _SPELLINGS:
            _warn(flag)
            word = "=".join([present_name(flag), *value])
        result.append(word)
    return result


@cache
def _warn(flag: str) -> None:
    print(f"{flag} is deprecated: give {present_name(flag)}", file=sys.stderr)
