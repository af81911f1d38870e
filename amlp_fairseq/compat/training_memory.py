"""A training on a CPU keeps the memory that it frees and few of the products that are compiled for a shape."""

from __future__ import annotations

from typing import Any

import torch

from amlp_fairseq.common.host_memory import (
    KEPT,
    KEPT_BY_TRAINING,
    FreedPieces,
    has_huge_pages,
    keep_few_products,
    keep_freed_memory,
)


def keep_memory(begin: Any, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Keep the memory that a training on a CPU frees, and few compiled products."""
    self._freed_pieces = None
    if getattr(cfg, "common", cfg).cpu or not torch.cuda.is_available():
        keep_few_products()
        keep_freed_memory(KEPT_BY_TRAINING if has_huge_pages() else KEPT)
        self._freed_pieces = FreedPieces()
    begin(self, cfg, *args, **kwargs)


def return_pieces(update: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Give freed memory back once the process has grown."""
    result = update(self, *args, **kwargs)
    if self._freed_pieces is not None:
        self._freed_pieces.after_update()
    return result
