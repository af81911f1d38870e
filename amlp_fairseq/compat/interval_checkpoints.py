"""``--save-interval-updates`` with ``--no-epoch-checkpoints``: fairseq saves nothing at the end of an epoch."""

from __future__ import annotations

from typing import Any

from amlp_fairseq.compat.guarded_tasks import is_guarded


def save_within_epoch(save: Any, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
    """Let guarded trainings without epochs' checkpoints save that of an interval wherever it ends. In fairseq an epoch
    of as many updates as the interval, or a fraction of it, leaves none."""
    if getattr(cfg, "no_epoch_checkpoints", False) and is_guarded(trainer):
        epoch_itr = WithinEpoch(epoch_itr)
    return save(cfg, trainer, epoch_itr, val_loss)


class WithinEpoch:
    """An iterator over epochs that does not say that one has ended; its state does."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def end_of_epoch(self) -> bool:
        return False
