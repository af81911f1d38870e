"""Trainings that are started in a folder of checkpoints: one at a time, none that has ended, and a way on where the
last checkpoint is damaged."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

from fairseq.file_io import PathManager

from amlp_fairseq.common.arguments import WITHOUT_COLON
from amlp_fairseq.common.files import hold
from amlp_fairseq.compat.guarded_tasks import is_guarded
from amlp_fairseq.compat.resumed_state import patience_state

logger = logging.getLogger(__name__)

#: The default of ``--restore-file``.
LAST = "checkpoint_last.pt"
#: What is wrong with a folder that another process has locked.
BUSY = "another training writes its checkpoints there"


def check_folder(load: Any, cfg: Any, trainer: Any, **kwargs: Any) -> Any:
    """Guard the start of a guarded training, see :func:`amlp_fairseq.compat.guarded_tasks.is_guarded`."""
    if not is_guarded(trainer):
        return load(cfg, trainer, **kwargs)
    if ":" in cfg.save_dir:
        raise ValueError(f"--save-dir {cfg.save_dir}: {WITHOUT_COLON}")
    for option, path in (("--restore-file", cfg.restore_file), ("--continue-once", cfg.continue_once)):
        if path not in (None, LAST) and not PathManager.exists(path):  # fairseq would begin anew
            raise ValueError(f"{option} {path} does not exist")
    data = trainer.cfg.dataset
    if data.update_ordered_indices_seed and not data.update_epoch_batch_itr:
        raise ValueError(
            "--update-ordered-indices-seed needs --update-epoch-batch-itr True: otherwise batches are composed once"
        )
    if trainer.is_data_parallel_master and not cfg.no_save:
        hold(Path(cfg.save_dir) / ".training.lock", f"--save-dir {cfg.save_dir}: {BUSY}")
    try:
        loaded = load(cfg, trainer, **kwargs)
    except ValueError as error:
        if cfg.restore_file != LAST or "is damaged or no checkpoint" not in str(error):
            raise
        whole = newest_whole(Path(cfg.save_dir))
        way = f"--restore-file {whole} goes on from the newest whole one" if whole else "there is no whole one"
        raise ValueError(f"{error}; {way}") from error
    optimization = trainer.cfg.optimization
    if 0 < optimization.max_update <= trainer.get_num_updates():  # fairseq would make one more
        logger.info("the training has had its %d updates", trainer.get_num_updates())
        optimization.max_epoch = -1
    elif 0 < cfg.patience <= patience_state().get("num_runs", 0):
        logger.info("the training has stopped early, after %d updates", trainer.get_num_updates())
        optimization.max_epoch = -1
    return loaded


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
