"""The versions of Python, torch, triton and numpy that the tests have run with (scripts/test_matrix.sh)."""

from __future__ import annotations

import re
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

Version = tuple[int, int]
#: From the oldest to the newest.
TESTED: dict[str, tuple[Version, Version]] = {
    "Python": ((3, 10), (3, 12)),
    "torch": ((2, 11), (2, 14)),
    "triton": ((3, 6), (3, 8)),
    "numpy": ((1, 26), (2, 5)),
}
#: Requirements for importing the package at all, and how to get them.
LEAST: dict[str, tuple[Version, str]] = {
    "Python": ((3, 10), "make a virtual environment of Python 3.10, 3.11 or 3.12"),
    "torch": ((2, 6), 'pip install "amlp-fairseq[train]"'),
    "numpy": ((1, 26), 'pip install "numpy>=1.26"'),
}


def check() -> None:
    """Warn once about versions that the tests have not run with.

    Raises:
        ImportError: saying what to install, if the package cannot work with one of them.
    """
    found = {name: number for name in TESTED if (number := installed(name)) is not None}
    for name, (least, fix) in LEAST.items():
        if name in found and found[name] < least:
            message = f"amlp_fairseq needs {name} {_text(least)} or newer, this is {_text(found[name])}: {fix}"
            raise ImportError(message, name=name)
        if name not in found and find_spec(name) is None:
            raise ImportError(f"amlp_fairseq needs {name}, which is not installed: {fix}", name=name)
    untested = [
        f"{name} {_text(found[name])} (tested: {_text(oldest)} to {_text(newest)})"
        for name, (oldest, newest) in TESTED.items()
        if name in found and not oldest <= found[name] <= newest
    ]
    if untested:
        message = f"amlp_fairseq has not been tested with {', '.join(untested)}"
        if found.get("torch", (0, 0)) > TESTED["torch"][1]:
            message += f"; the tested torch: {LEAST['torch'][1]}"
        warnings.warn(message, stacklevel=2)


def installed(name: str) -> Version | None:
    """Major and minor version; None if it is not installed."""
    if name == "Python":
        return sys.version_info[:2]
    try:
        major, minor = re.findall(r"\d+", version(name))[:2]
    except PackageNotFoundError:
        return None
    return int(major), int(minor)


def _text(number: Version) -> str:
    return ".".join(map(str, number))
