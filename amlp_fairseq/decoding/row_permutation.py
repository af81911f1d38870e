"""How the rows of a batch follow the beam."""

from __future__ import annotations

from torch import Tensor


class RowPermutation:
    """The rows that a batch goes on with: row i of a table becomes what row ``origins[i]`` was. A row may go on several
    times or not at all."""

    def __init__(self, origins: Tensor) -> None:
        self.origins = origins
        if not origins.is_cuda:
            #: The rows that become others, and these.
            self.moves = [(row, origin) for row, origin in enumerate(origins.tolist()) if row != origin]
            self.overwritten = {row for row, _ in self.moves}

    def apply(self, table: Tensor, dim: int = 0) -> Tensor:
        """Move the rows of a table, its axis ``dim``, in place; returns those that go on, a view."""
        result = table.narrow(dim, 0, len(self.origins))
        if table.is_cuda:
            return result.copy_(table.index_select(dim, self.origins))
        # Row by row: to assign to an index of several takes four times as long on a CPU, and index_select along the
        # second axis of a Transformer base's keys and values seven times.
        contents = [
            table.select(dim, origin).clone() if origin in self.overwritten else table.select(dim, origin)
            for _, origin in self.moves
        ]
        for (row, _), content in zip(self.moves, contents, strict=True):
            table.select(dim, row).copy_(content)
        return result
