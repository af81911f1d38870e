"""Batched KV cache: the decoding states of all layers in stacks, for operations on all layers together. Notation:
docs/glossary.md."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.state import State, with_slots


class StateLayout:
    """Groups the tensors of the same shape in the states of a decoder's attentions, which share a stack.

    Args:
        attentions: self-attentions with their ``init_state`` and cross-attentions with their ``row_state``.
        like: a tensor of the type and on the device of their inputs.

    Attributes:
        attentions: number of attentions.
        members: for each stack the indices of its attentions and the names of its tensors.
        shapes: for each stack the shape of its tensors without the rows.
        dtypes: for each stack the type of its tensors.
        per_position: for each stack, True if its tensors have slots, (…, slots, width).
    """

    def __init__(self, attentions: Sequence[Attention], like: Tensor) -> None:
        groups: dict[tuple[torch.Size, torch.dtype, bool], list[tuple[int, str]]] = defaultdict(list)
        for index, attention in enumerate(attentions):
            state = attention.row_state(1, like) if attention.spec.cross else attention.init_state(1, 1, like)
            for name, tensor in state.items():
                groups[tensor.shape[1:], tensor.dtype, name in attention.per_position].append((index, name))
        self.attentions = len(attentions)
        self.members = list(groups.values())
        self.shapes, self.dtypes, self.per_position = zip(*groups, strict=True)

    def row_bytes(self, slots: int) -> int:
        """Bytes of a row's states with ``slots`` slots."""
        return sum(
            len(members) * math.prod(shape if not per_position else (*shape[:-2], slots, shape[-1])) * dtype.itemsize
            for members, shape, dtype, per_position in zip(
                self.members, self.shapes, self.dtypes, self.per_position, strict=True
            )
        )


class KVCache:
    """The states of a batch: initially zeros; slots that are not written yet may hold anything.

    Attributes:
        by_attention: the state of each attention, views of the stacks.
        stacks: (members, R, …), with slots (members, R, …, slots, width).
        slots: capacity of the stacks with slots.
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
        self._make_views()

    def _make_views(self) -> None:
        self.by_attention: list[State] = [{} for _ in range(self.layout.attentions)]
        for stack, members in zip(self.stacks, self.layout.members, strict=True):
            for (index, name), tensor in zip(members, stack.unbind(), strict=True):
                self.by_attention[index][name] = tensor

    def written(self, slots: int) -> list[Tensor]:
        """Views of the stacks, with only the first ``slots`` slots."""
        stacks = zip(self.stacks, self.layout.per_position, strict=True)
        return [stack.narrow(-2, 0, slots) if per_position else stack for stack, per_position in stacks]

    def grow(self) -> None:
        """Double the slots."""
        self.slots *= 2
        stacks = zip(self.stacks, self.layout.per_position, strict=True)
        self.stacks = [with_slots(stack, self.slots) if per_position else stack for stack, per_position in stacks]
        self._make_views()

    def keep_rows(self, rows: int) -> None:
        """Keep the first ``rows`` rows."""
        self.stacks = [stack[:, :rows] for stack in self.stacks]
        self._make_views()


def fill(buffer: Tensor, content: Tensor) -> None:
    """Copy ``content`` into the first elements of every axis of a buffer, and zero the rest."""
    buffer.zero_()[tuple(slice(size) for size in content.shape)].copy_(content)
