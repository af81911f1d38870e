"""The Triton kernels of a module, and what they are launched with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def kernel_names(module: ModuleType) -> list[str]:
    return re.findall(r"^def (\w+_kernel)\(", Path(str(module.__file__)).read_text(encoding="utf-8"), re.MULTILINE)


def record_launches(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of all later launches, in order, in a list that grows; the kernels still run."""
    launched: list[dict[str, Any]] = []

    class Spy:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(**arguments: Any) -> None:
                launched.append(arguments)
                self.kernel[grid](**arguments)

            return launch

    for name in kernel_names(module):
        monkeypatch.setattr(module, name, Spy(getattr(module, name)))
    return launched
