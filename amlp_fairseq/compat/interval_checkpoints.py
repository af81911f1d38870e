"""``--save-interval-updates`` with ``--no-epoch-checkpoints``: fairseq saves nothing at the end of an epoch."""

from __future__ import annotations

import functools
from typing import Any

from fairseq import checkpoint_utils

from amlp_fairseq.compat.guarded_tasks import is_guarded


def install() -> None:
    """Let guarded trainings without epochs' checkpoints save that of an interval wherever it ends. In fairseq an epoch
    of as many updates as the interval, or a fraction of it, leaves none."""
    save = checkpoint_utils.save_checkpoint

    @functools.wraps(save)
    def save_checkpoint(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        if getattr(cfg, "no_epoch_checkpoints", False) and is_guarded(trainer):
            epoch_itr = WithinEpoch(epoch_itr)
        return save(cfg, trainer, epoch_itr, val_loss)

    checkpoint_utils.save_checkpoint = save_checkpoint


class WithinEpoch:
    """An iterator over epochs that does not say that one has ended; its state does."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def end_of_epoch(self) -> bool:
        return False
