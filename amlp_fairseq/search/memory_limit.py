"""Refuses searches that need more main or GPU memory than is free. Notation: docs/glossary.md."""

from __future__ import annotations

from pathlib import Path

import torch

from amlp_fairseq.common.host_memory import KEPT

GIB = 1 << 30


def needed_bytes(rows: int, z: int, vocab: int, beam: int, models: int, itemsize: int, row_bytes: int) -> int:
    """Lower bound, in bytes, on the memory of the first step.

    Args:
        rows: R.
        z: words of a step.
        vocab: V.
        beam: B.
        models: number of models that are averaged.
        itemsize: bytes of a logit.
        row_bytes: bytes of a row's states, summed over models.
    """
    table, candidates = rows * z * vocab, min(2 * beam, vocab)
    continuations = rows * candidates**2 * 4 if z > 1 else 0
    probabilities = table * 4 * models
    averaged = 2 * probabilities if models > 1 else 0  # stacked
    return rows * row_bytes + max(probabilities + table * itemsize, averaged, table * 4 + continuations)


def refuse_too_large(needed: int, sentences: int, beam: int, device: torch.device, option: str = "--beam") -> None:
    """Raise ValueError if a search needs more bytes than are free; searches below 1 GiB are not checked."""
    free = free_bytes(device) if needed > GIB else None
    if free is not None and needed > free:
        raise ValueError(
            f"{option} {beam} with {sentences} sentence(s) in a batch needs at least {needed / GIB:.1f} GiB, and there "
            f"are {free / GIB:.1f} ({device.type}): take a smaller {option}, or smaller batches (--batch-size)"
        )


def free_bytes(device: torch.device, root: Path = Path("/")) -> int | None:
    """Bytes that this process can still use, freed memory that it holds included; None where unknown.

    Args:
        device: CPU or CUDA.
        root: root of the file system with ``/proc`` and ``/sys``.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        free = [sizes["MemAvailable"] + sizes["SwapFree"]]
    except (OSError, LookupError, ValueError):
        return None
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            free += _free_in_groups(root / "sys/fs/cgroup" / controllers, path.strip("/"))
    return max(0, min(free)) + KEPT


def _free_in_groups(root: Path, path: str) -> list[int]:
    """Free bytes of a control group and of each group that contains it, version 1 (``root`` ends in memory) or 2."""
    names = ("memory.max", "memory.current", "inactive_file")
    if root.name == "memory":
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    free, parts = [], path.split("/") if path else []
    for folder in (root.joinpath(*parts[:end]) for end in range(len(parts) + 1)):
        try:
            limit, used = (int((folder / name).read_text(encoding="utf-8")) for name in names[:2])
            lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
            free.append(limit - used + int(dict(line.split() for line in lines)[names[2]]))
        except (OSError, LookupError, ValueError):
            continue  # there is no limit: "max", or no such file
    return free
