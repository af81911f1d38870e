"""The folder of a training: the names of its files, its mark, and its newest whole checkpoint."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from amlp_fairseq.common.files import writing

#: The file that says how the model of ``amlp-fairseq train --row`` is trained and decoded.
RECIPE = "recipe.yaml"
#: The default of ``--restore-file``.
LAST = "checkpoint_last.pt"
#: The file of a training that has diverged: after how many updates, and the reason.
CRASH, DIVERGED = "crash.pt", "diverged.json"
#: Says that another process has locked a folder.
BUSY = "another training writes its checkpoints there"


def mark_diverged(folder: Path, updates: int, reason: str) -> None:
    """Note that the training of a folder has diverged; each of its processes does."""
    with writing(folder / DIVERGED, unique=True) as (file,):
        json.dump({"updates": updates, "error": reason}, file)


def diverged(folder: Path) -> int | None:
    """After how many updates the training in a folder has diverged, None if it has not."""
    path = folder / DIVERGED
    return int(json.loads(path.read_text(encoding="utf-8"))["updates"]) if path.is_file() else None


def newest_whole(folder: Path) -> Path | None:
    """The checkpoint of ``folder`` that was written last, of those that can be read to their ends."""
    checkpoints = sorted(folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in checkpoints if _is_whole(path)), None)


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False
