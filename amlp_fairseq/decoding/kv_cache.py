"""The decoding states of all layers, stacked so that one operation treats all of them. Notation: docs/glossary.md."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.state import State, with_slots


class StateLayout:
    """Which tensors in the states of a decoder's attentions have the same shape, and so share a stack.

    Args:
        attentions: self-attentions with their ``init_state`` and cross-attentions with their ``row_state``.
        like: a tensor of the type and on the device of their inputs.
    """

    def __init__(self, attentions: Sequence[Attention], like: Tensor) -> None:
        groups: dict[Any, list[tuple[int, str]]] = defaultdict(list)
        for index, attention in enumerate(attentions):
            state = attention.row_state(1, like) if attention.spec.cross else attention.init_state(1, 1, like)
            for name, tensor in state.items():
                groups[tensor.shape[1:], tensor.dtype, name in attention.per_position].append((index, name))
        self.attentions = len(attentions)
        #: For each stack: the attentions and names of its members; their shape without the rows; their type; whether
        #: they are per_position.
        self.members = list(groups.values())
        self.shapes, self.dtypes, self.per_position = zip(*groups, strict=True)

    def row_bytes(self, slots: int) -> int:
        """Size of a row's states, with room for so many slots."""
        return sum(
            len(members) * math.prod(shape if not per_position else (*shape[:-2], slots, shape[-1])) * dtype.itemsize
            for members, shape, dtype, per_position in zip(
                self.members, self.shapes, self.dtypes, self.per_position, strict=True
            )
        )


class KVCache:
    """The states of a batch: zeros at first, except that slots which are not written yet may hold anything.

    Attributes:
        each: the state of each attention, views of the stacks.
        stacks: (members, R, …).
        slots: how many the per_position stacks have room for, (members, R, …, slots, width).
    """

    def __init__(self, layout: StateLayout, rows: int, slots: int, like: Tensor) -> None:
        self.layout, self.slots = layout, slots
        self.stacks: list[Tensor] = []
        for members, shape, dtype, per_position in zip(
            layout.members, layout.shapes, layout.dtypes, layout.per_position, strict=True
        ):
            shape = (*shape[:-2], slots, shape[-1]) if per_position else shape
            new = like.new_empty if per_position else like.new_zeros
            self.stacks.append(new((len(members), rows, *shape), dtype=dtype))
        self._hand_out()

    def _hand_out(self) -> None:
        self.each: list[State] = [{} for _ in range(self.layout.attentions)]
        for stack, members in zip(self.stacks, self.layout.members, strict=True):
            for (index, name), tensor in zip(members, stack.unbind(), strict=True):
                self.each[index][name] = tensor

    def written(self, slots: int) -> list[Tensor]:
        """Views of the stacks, of the per_position ones only the first ``slots`` slots."""
        stacks = zip(self.stacks, self.layout.per_position, strict=True)
        return [stack.narrow(-2, 0, slots) if per_position else stack for stack, per_position in stacks]

    def grow(self) -> None:
        """Double the slots."""
        self.slots *= 2
        stacks = zip(self.stacks, self.layout.per_position, strict=True)
        self.stacks = [with_slots(stack, self.slots) if per_position else stack for stack, per_position in stacks]
        self._hand_out()

    def keep_rows(self, rows: int) -> None:
        """Keep only the first ``rows`` rows."""
        self.stacks = [stack[:, :rows] for stack in self.stacks]
        self._hand_out()


def fill(buffer: Tensor, content: Tensor) -> None:
    """Copy ``content`` into the first elements of every axis of a buffer; the rest becomes zero."""
    buffer.zero_()[tuple(slice(size) for size in content.shape)].copy_(content)
