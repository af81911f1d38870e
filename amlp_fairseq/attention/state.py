"""What an attention keeps while a decoder writes, and what a step tells it."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

#: The decoding state of an attention, by name: tensors whose first axis are the rows (for what a cross-attention keeps
#: of the source: the sentences).
State = dict[str, Tensor]


class StepContext:
    """What the attentions of a decoding step know beside their inputs and states.

    Attributes:
        slots: where the new words stand, (n,).
        end: how many slots are written when the step is done; a 0-d tensor in steps that are captured.
        beam: B, the rows of each sentence.
        bias: 0 or -inf for what the new words may not see of the slots up to ``end``, (n, slots), or None.
    """

    def __init__(self, slots: Tensor, end: int | Tensor, beam: int = 1, bias: Tensor | None = None) -> None:
        self.slots, self.beam, self.bias = slots, beam, bias
        self.end: Any = end

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        """Put the new words' part (R, …, n, d) into a buffer (R, …, slots, d); what the step sees of it, as many slots
        as ``bias`` has."""
        written, count = buffer.narrow(-2, 0, self.end), new.size(-2)
        written.narrow(-2, self.end - count, count).copy_(new)
        return written


def overwrite(state: State, new: State) -> None:
    """Make the values of a state those of another."""
    for name, value in new.items():
        state[name].copy_(value)


def with_slots(buffer: Tensor, slots: int) -> Tensor:
    """A buffer (…, slots, d) with so many slots, at least as many as it has; the new ones hold zeros."""
    return F.pad(buffer, (0, 0, 0, slots - buffer.size(-2)))
