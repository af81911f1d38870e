"""The decoding state of an attention, and the context of a decoding step. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

#: The decoding state of an attention, by name: tensors whose first axis is the rows (in the memory of a
#: cross-attention: the sentences).
State = dict[str, Tensor]


class StepContext:
    """What the attentions of a decoding step get besides their inputs and states.

    Attributes:
        slots: the slots of the new words, (n,).
        end: how many slots are written when the step is done; a 0-d tensor in steps that are captured.
        beam: B, the rows of each sentence.
        bias: 0 where a new word may attend to a slot before ``end``, -inf elsewhere, (n, slots); None: 0 everywhere.
    """

    def __init__(self, slots: Tensor, end: int | Tensor, beam: int = 1, bias: Tensor | None = None) -> None:
        self.slots, self.beam, self.bias = slots, beam, bias
        self.end: Any = end

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        """Write the new words' part (R, …, n, d) into a buffer (R, …, slots, d); returns the slots that the step sees,
        as many as ``bias`` has."""
        written, count = buffer.narrow(-2, 0, self.end), new.size(-2)
        written.narrow(-2, self.end - count, count).copy_(new)
        return written


class RowContext(StepContext):
    """The same where every row has slots of its own, (R, n)."""

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        slots = self.slots.view(len(self.slots), *[1] * (new.dim() - 3), -1, 1)
        return buffer.scatter_(-2, slots.expand_as(new), new).narrow(-2, 0, self.end)


def overwrite(state: State, new: State) -> None:
    """Copy the values of another state into a state."""
    for name, value in new.items():
        state[name].copy_(value)


def with_slots(buffer: Tensor, slots: int) -> Tensor:
    """A buffer (…, slots, d) enlarged to ``slots`` slots, the new ones zero."""
    return F.pad(buffer, (0, 0, 0, slots - buffer.size(-2)))
