"""Reads as a checkpoint of fairseq a model folder (``model_folder/format.py``), and the folder of a training that
``amlp-fairseq evaluate`` has averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amlp_fairseq.compat.internals import overwrite_args_by_name
from amlp_fairseq.model_folder.config import is_model_folder
from amlp_fairseq.model_folder.format import read_checkpoint

#: The checkpoint that ``amlp-fairseq evaluate`` writes into the folder of a training.
AVERAGE = "average.pt"


def read_folder(path: str, overrides: Mapping[str, Any] | None) -> dict[str, Any] | str:
    """The state of a model folder, as of a checkpoint, or the path of the averaged checkpoint in the folder of a
    training."""
    if not is_model_folder(path) and (Path(path) / AVERAGE).is_file():
        return str(Path(path) / AVERAGE)
    state = read_checkpoint(Path(path))
    overwrite_args_by_name(state["cfg"], overrides or {})
    return state


def is_checkpoint(isfile: Callable[[str], bool], path: str) -> bool:
    """True for files, and for folders that :func:`read_folder` reads: ``Trainer.load_checkpoint`` ignores other paths,
    and would train from random parameters."""
    return bool(isfile(path)) or is_model_folder(path) or (Path(path) / AVERAGE).is_file()
