"""An experiment: a row, the data that it learns from and the seed."""

from __future__ import annotations

from typing import Any, NamedTuple


class Experiment(NamedTuple):
    """A row with the data that it is trained on and its seed."""

    row: str
    distilled: bool
    seed: int

    @classmethod
    def of(cls, line: dict[str, Any]) -> Experiment:
        """The experiment of a line of results."""
        return cls(line["system"], line["distilled"], line["seed"])

    @property
    def configuration(self) -> str:
        """The name without the seed."""
        return self.row + "-distilled" * self.distilled

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.configuration}-{self.seed}"
