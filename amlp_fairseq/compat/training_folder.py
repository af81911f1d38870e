"""Trainings that are started in a folder of checkpoints: one at a time, none that has ended, and a way on where the
last checkpoint is damaged."""

from __future__ import annotations

import functools
import logging
import zipfile
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from filelock import FileLock, Timeout

from amlp_fairseq.compat.guarded_tasks import GuardedTranslationTask

logger = logging.getLogger(__name__)

#: In the folder of a training with ``amlp-fairseq train --row``: how the model is trained and decoded.
RECIPE = "recipe.yaml"

#: Locks of this process, which the system releases when the process ends, however it ends.
_held: dict[Path, FileLock] = {}


def install() -> None:
    """Guard the start of a training of a guarded task, see :mod:`amlp_fairseq.compat.guarded_tasks`, or of a recipe."""
    load = checkpoint_utils.load_checkpoint

    @functools.wraps(load)
    def load_checkpoint(cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        if not isinstance(trainer.task, GuardedTranslationTask) and not Path(cfg.save_dir, RECIPE).is_file():
            return load(cfg, trainer, **kwargs)
        if trainer.is_data_parallel_master:
            _lock(Path(cfg.save_dir))
        try:
            loaded = load(cfg, trainer, **kwargs)
        except ValueError as error:
            if cfg.restore_file != "checkpoint_last.pt" or "is damaged or no checkpoint" not in str(error):
                raise
            whole = newest_whole(Path(cfg.save_dir))
            way = f"--restore-file {whole} goes on from the newest whole one" if whole else "there is no whole one"
            raise ValueError(f"{error}; {way}") from error
        optimization = trainer.cfg.optimization
        if 0 < optimization.max_update <= trainer.get_num_updates():  # fairseq would make one more
            logger.info("the training has had its %d updates", trainer.get_num_updates())
            optimization.max_epoch = -1
        return loaded

    checkpoint_utils.load_checkpoint = load_checkpoint


def newest_whole(folder: Path) -> Path | None:
    """The checkpoint of ``folder`` that was written last, of those that can be read to their ends."""
    found = sorted(folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in found if _is_whole(path)), None)


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


def _lock(folder: Path) -> None:
    folder = folder.resolve()
    if folder not in _held:
        lock = FileLock(folder / ".training.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"--save-dir {folder}: another training writes its checkpoints there") from None
        _held[folder] = lock
