"""The hardware and software that results were made with."""

from __future__ import annotations

import platform
import re
import subprocess
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import torch
from torch.utils import collect_env

from amlp_fairseq.engine.isa import library_isa

PACKAGES = ("torch", "triton", "amlp-fairseq", "sacrebleu", "sentencepiece")


def environment(device: str | None = None) -> dict[str, object]:
    """Device, versions, commit and day.

    Args:
        device: ``cpu`` or ``cuda``; by default the GPU where there is one.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    revision, changed = commit()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{processor()} (CPU)",
        "threads": torch.get_num_threads(),
        **({"isa": _isa()} if device == "cpu" else {}),
        "python": platform.python_version(),
        **({"cuda": torch.version.cuda} if device == "cuda" else {}),
        **{name: found for name in (*PACKAGES, *packages_distributions()["fairseq"]) if (found := _version(name))},
        "commit": revision[:12] + "+changes" * changed,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def _isa() -> str | None:
    """The engine's instruction set; None if it has not been compiled."""
    try:
        return library_isa()
    except ImportError:
        return None


@cache
def processor() -> str:
    """The name of the CPU."""
    found = re.search(r"^Model name:\s*(.*)$", collect_env.get_cpu_info(collect_env.run) or "", flags=re.MULTILINE)
    return found.group(1) if found else platform.machine()


def commit() -> tuple[str, bool]:
    """The commit that is checked out, and whether there may be changes; ``unknown`` for an installed package."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return "unknown", False
    return git("rev-parse", "HEAD") or "unknown", git("status", "--porcelain") != ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
