"""The folder of a model (``model_folder/format.py``) wherever fairseq reads a checkpoint, and the folder of a
training that ``amlp-fairseq evaluate`` has averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amlp_fairseq.compat.internals import overwrite_args_by_name
from amlp_fairseq.model_folder.format import is_model_folder, read_checkpoint

#: What ``amlp-fairseq evaluate`` writes into the folder of a training.
AVERAGE = "average.pt"


def read_folder(path: str, overrides: Any) -> dict[str, Any] | str:
    """The state of the folder of a model, as that of a checkpoint; the path of the averaged checkpoint in the folder of
    a training."""
    if not is_model_folder(path) and (Path(path) / AVERAGE).is_file():
        return str(Path(path) / AVERAGE)
    state = read_checkpoint(Path(path))
    overwrite_args_by_name(state["cfg"], overrides or {})
    return state


def is_checkpoint(isfile: Any, path: str) -> bool:
    """True for what :func:`read_folder` reads, too: ``Trainer.load_checkpoint`` passes over what is no file, and would
    train from random parameters."""
    return bool(isfile(path)) or is_model_folder(path) or (Path(path) / AVERAGE).is_file()
