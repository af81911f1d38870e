"""Changes of ``fairseq.file_io``: checkpoints that are whole, also when a training is killed while it copies one."""

from __future__ import annotations

from typing import Any

from fairseq.file_io import PathManager

from amlp_fairseq.compat.changes import Stock


def copy(stock: Stock, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    """Let a copy take its place when it is whole: killed while it made checkpoint_last.pt a copy of the newest
    checkpoint, stock left half of it, from which training could not go on."""
    if not (overwrite and PathManager.supports_rename(dst_path)):
        return stock(src_path, dst_path, overwrite)
    copied = stock(src_path, dst_path + ".tmp", overwrite)
    PathManager.rename(dst_path + ".tmp", dst_path)
    return copied
