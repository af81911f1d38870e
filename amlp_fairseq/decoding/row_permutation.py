"""Reorders the rows of tables after a step of the beam search."""

from __future__ import annotations

from torch import Tensor


class RowPermutation:
    """Moves row ``origins[i]`` of a table to row i. Rows may be repeated or omitted."""

    def __init__(self, origins: Tensor) -> None:
        self.origins = origins
        if not origins.is_cuda:
            #: The rows that change, with their origins.
            self.moves = [(row, origin) for row, origin in enumerate(origins.tolist()) if row != origin]
            self.overwritten = {row for row, _ in self.moves}

    def apply(self, table: Tensor, dim: int = 0) -> Tensor:
        """Permute the rows of a table, along axis ``dim``, in place; returns a view of the first ``len(origins)``."""
        result = table.narrow(dim, 0, len(self.origins))
        if table.is_cuda:
            return result.copy_(table.index_select(dim, self.origins))
        # Row by row: on a CPU, assigning several rows by index takes four times as long, and index_select along the
        # second axis of a Transformer base's keys and values seven times.
        contents = [
            table.select(dim, origin).clone() if origin in self.overwritten else table.select(dim, origin)
            for _, origin in self.moves
        ]
        for (row, _), content in zip(self.moves, contents, strict=True):
            table.select(dim, row).copy_(content)
        return result
