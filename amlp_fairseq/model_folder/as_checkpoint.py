"""The folder of a model (``model_folder/format.py``) wherever fairseq reads a checkpoint, and the folder of a
training that ``amlp-fairseq evaluate`` has averaged."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from amlp_fairseq.compat.internals import overwrite_args_by_name
from amlp_fairseq.model_folder.format import is_model_folder, read_checkpoint

#: What ``amlp-fairseq evaluate`` writes into the folder of a training.
AVERAGE = "average.pt"


def install() -> None:
    """Let ``checkpoint_utils.load_checkpoint_to_cpu`` read folders, and ``Trainer.load_checkpoint`` ask for them: it
    passes over what is no file, and would train from random parameters."""
    load, isfile = checkpoint_utils.load_checkpoint_to_cpu, PathManager.isfile

    def is_checkpoint(path: str) -> bool:
        return isfile(path) or is_model_folder(path) or (Path(path) / AVERAGE).is_file()

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, arg_overrides: Any = None, load_on_all_ranks: bool = False) -> dict[str, Any]:
        if not Path(path).is_dir():
            return load(path, arg_overrides, load_on_all_ranks)
        if not is_model_folder(path) and (Path(path) / AVERAGE).is_file():
            return load(str(Path(path) / AVERAGE), arg_overrides, load_on_all_ranks)
        state = read_checkpoint(Path(path))
        overwrite_args_by_name(state["cfg"], arg_overrides or {})
        return state

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    PathManager.isfile = staticmethod(is_checkpoint)
