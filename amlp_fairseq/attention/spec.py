"""Position and use of an attention in a model, from which it is built. Notation: docs/glossary.md."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

#: Uses of an attention. "causal": the output at a position does not depend on later inputs, which are unknown in
#: decoding. In "causal cross" attention this concerns only the queries.
PATTERNS = ("noncausal self", "causal self", "noncausal cross", "causal cross")


@dataclass(frozen=True)
class AttentionSpec:
    """Position and use of an attention in a model.

    Attributes:
        options: the model's options, with the names on the command line as attributes.
        side: ``encoder`` or ``decoder``.
        layer: index of the layer, from 0.
        pattern: one of ``PATTERNS``.
        words_per_step: z; under "causal self" position i sees j iff ⌊i/z⌋ ≥ ⌊j/z⌋ (IBDecoder, Eq. 4). 1 is plain
            causality.
        directions: h, the directions in which the words of a step are written; position i is of direction i mod h.
    """

    options: Namespace
    side: str
    layer: int
    pattern: str
    words_per_step: int = 1
    directions: int = 1

    @property
    def causal(self) -> bool:
        """True for "causal self" and "causal cross"."""
        return self.pattern.startswith("causal")

    @property
    def cross(self) -> bool:
        """True for "noncausal cross" and "causal cross"."""
        return self.pattern.endswith("cross")

    def option(self, name: str) -> Any:
        """Value of ``--<side>-<name>``."""
        return getattr(self.options, f"{self.side}_{name}")

    def count(self, name: str) -> Any:
        """Value of an option that is a positive number or None.

        Raises:
            ValueError: if the value is less than 1.
        """
        value = getattr(self.options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value} must be at least 1")
        return value

    @property
    def kernel_size(self) -> int:
        """The layer's entry of ``--<side>-kernel-size-list``; a single entry holds for all layers.

        Raises:
            ValueError: if the number of entries is not the number of layers, or an entry is less than 1.
        """
        sizes, layers = list(self.option("kernel_size_list")), self.option("layers")
        if len(sizes) == 1:
            sizes = sizes * layers
        if len(sizes) != layers:
            raise ValueError(
                f"--{self.side}-kernel-size-list {sizes} has {len(sizes)} entries, --{self.side}-layers is {layers}"
            )
        if sizes[self.layer] < 1:
            raise ValueError(f"--{self.side}-kernel-size-list {sizes} has an entry below 1")
        return sizes[self.layer]
