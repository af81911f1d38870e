"""The row permutation after a step of the beam search."""

from __future__ import annotations

from torch import Tensor


class RowPermutation:
    """Row i of a table becomes what row ``origins[i]`` was. A row may be taken several times or not at all."""

    def __init__(self, origins: Tensor) -> None:
        self.origins = origins
        if not origins.is_cuda:
            #: The rows that change, each with its origin.
            self.moves = [(row, origin) for row, origin in enumerate(origins.tolist()) if row != origin]
            self.overwritten = {row for row, _ in self.moves}

    def apply(self, table: Tensor, dim: int = 0) -> Tensor:
        """Permute the rows of a table, its axis ``dim``, in place; returns a view of the first ``len(origins)``."""
        result = table.narrow(dim, 0, len(self.origins))
        if table.is_cuda:
            return result.copy_(table.index_select(dim, self.origins))
        # Row by row: on a CPU, assigning to several rows by index takes four times as long, and index_select along the
        # second axis of a Transformer base's keys and values seven times.
        contents = [
            table.select(dim, origin).clone() if origin in self.overwritten else table.select(dim, origin)
            for _, origin in self.moves
        ]
        for (row, _), content in zip(self.moves, contents, strict=True):
            table.select(dim, row).copy_(content)
        return result
