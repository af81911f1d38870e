"""Decoding state of an attention, and context of a decoding step. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

#: Decoding state of an attention: tensors by name, whose first axis is the rows, or in the memory of a cross-attention
#: the sentences.
State = dict[str, Tensor]


class StepContext:
    """Arguments of a decoding step that all attentions share.

    Attributes:
        slots: slots of the new words, (n,).
        end: number of slots written after the step; a 0-d tensor in steps captured as a CUDA graph.
        beam: B, number of rows per sentence.
        bias: 0 where a new word may attend to a slot before ``end``, -inf elsewhere, (n, slots); None: 0 everywhere.
    """

    def __init__(self, slots: Tensor, end: int | Tensor, beam: int = 1, bias: Tensor | None = None) -> None:
        self.slots, self.beam, self.bias = slots, beam, bias
        self.end: Any = end

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        """Write the part of the new words (R, …, n, d) into a buffer (R, …, slots, d) and return the slots that the
        step attends to, as many as ``bias`` has."""
        written, count = buffer.narrow(-2, 0, self.end), new.size(-2)
        written.narrow(-2, self.end - count, count).copy_(new)
        return written


class RowContext(StepContext):
    """Context in which ``slots`` differ by row, (R, n)."""

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        slots = self.slots.view(len(self.slots), *[1] * (new.dim() - 3), -1, 1)
        return buffer.scatter_(-2, slots.expand_as(new), new).narrow(-2, 0, self.end)


def overwrite(state: State, new: State) -> None:
    """Copy the values of ``new`` into ``state`` in place."""
    for name, value in new.items():
        state[name].copy_(value)


def with_slots(buffer: Tensor, slots: int) -> Tensor:
    """Buffer (…, slots, d) padded with zeros to ``slots`` slots."""
    return F.pad(buffer, (0, 0, 0, slots - buffer.size(-2)))
