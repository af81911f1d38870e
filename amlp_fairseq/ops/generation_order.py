"""Generation order, word positions and attention mask of interleaved decoding.

Source: Zhang, Titov and Sennrich, "Fast Interleaved Bidirectional Sequence Generation" (2020), Section 4. Notation:
docs/glossary.md.

A target of n words is written by h *directions*; every decoding step writes c words per direction, z = h·c words in
total. Positions in generation order are called *slots*, t = 0 … n-1 (the paper counts from 1). Slot t belongs to step
t // z and to direction t % h.

For h = 1 the generation order is the reading order. An even h has h/2 segments, as equal as possible, the longer ones
first; each is written from its two ends (Eq. 6), and the k-th words of all segments follow each other, k = 1, 2, …
(Eq. 9). So direction d writes words of segment d mod h/2, in reading order iff d < h/2. This is a permutation for every
n, and a slot's direction (Eq. 10) never depends on n, which is unknown while decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

ATTENTION_MASKS = ("interleaved", "vanilla", "independent-directions")


@dataclass(frozen=True)
class GenerationOrder:
    """Order in which a target is written: h directions, c words per direction and step, from the ends or from the
    middle.

    Attributes:
        num_directions: h, 1 or an even number.
        words_per_direction: c; 0 if the directions take turns with one word per step (Table 3, bidirectional and
            autoregressive).
        middle_to_side: generate every segment from its middle to its two ends (Table 2, row 4).

    Raises:
        ValueError: for values that define no order.
    """

    num_directions: int = 2
    words_per_direction: int = 1
    middle_to_side: bool = False

    def __post_init__(self) -> None:
        h, c = self.num_directions, self.words_per_direction
        if h < 1 or (h > 1 and h % 2):
            raise ValueError(f"--num-directions must be 1 or an even number (2, 4, …), not {h}")
        if c < 0:
            raise ValueError(f"--words-per-direction must be at least 0, not {c}")
        if c == 0 and h == 1:
            raise ValueError("--words-per-direction 0 needs at least two directions, --num-directions is 1")
        if self.middle_to_side and h == 1:
            raise ValueError("--middle-to-side needs at least two directions, --num-directions is 1")

    @property
    def words_per_step(self) -> int:
        """Number z = h·c of words that one decoder call writes; 1 if the directions take turns."""
        return self.num_directions * self.words_per_direction or 1

    @property
    def left_to_right(self) -> bool:
        """True for the order of an autoregressive model."""
        return self.num_directions == self.words_per_direction == 1

    def padded_length(self, length: int) -> int:
        """Number of slots in the steps that write ``length`` words: ⌈length / z⌉·z."""
        return -(-length // self.words_per_step) * self.words_per_step

    def permutation(self, length: int) -> Tensor:
        """Index in the text of each slot's word, (length,); cached and shared between calls, so do not modify it."""
        return _permutation(length, self.num_directions, self.middle_to_side)

    def interleave(self, words: Tensor) -> Tensor:
        """Permute words (n, …) from reading order to generation order, y → y^bd or y^md (Eq. 6 and 9)."""
        return words[self.permutation(words.size(0)).to(words.device)]

    def slots(self, length: int) -> Tensor:
        """Slot of each word of a text, (length,): the inverse of :meth:`permutation`, cached as well."""
        return _slots(length, self.num_directions, self.middle_to_side)

    def slots_and_end(self, length: int) -> Tensor:
        """Slots of the words and of the end symbol after them, (length + 1,); cached as :meth:`slots`."""
        return _slots_and_end(length, self.num_directions, self.middle_to_side)

    def recover(self, words: Tensor) -> Tensor:
        """Permute words (n, …) from generation order to reading order: the inverse of :meth:`interleave`."""
        return words[self.slots(words.size(0)).to(words.device)]

    def reads_forward(self, direction: int) -> bool:
        """True if the direction writes its words in reading order."""
        return (direction < max(self.num_directions // 2, 1)) != self.middle_to_side


@lru_cache(maxsize=4096)
@torch.inference_mode(False)  # cached tensors are used in training as well
def _permutation(length: int, h: int, middle_to_side: bool) -> Tensor:
    if h == 1:
        return torch.arange(length)
    slots, segments = torch.arange(length), h // 2
    k, segment = slots // segments, slots % segments  # slot t holds the k-th word (from 0) of a segment
    shortest, longer = divmod(length, segments)
    start = segment * shortest + segment.clamp(max=longer)
    size = shortest + (segment < longer).long()
    forward, pair = k % 2 == 0, k // 2
    if middle_to_side:
        middle = start + (size + 1) // 2
        return torch.where(forward, middle - 1 - pair, middle + pair)
    return torch.where(forward, start + pair, start + size - 1 - pair)


@lru_cache(maxsize=4096)
@torch.inference_mode(False)
def _slots(length: int, h: int, middle_to_side: bool) -> Tensor:
    return _permutation(length, h, middle_to_side).argsort()


@lru_cache(maxsize=4096)
@torch.inference_mode(False)
def _slots_and_end(length: int, h: int, middle_to_side: bool) -> Tensor:
    return torch.cat([_slots(length, h, middle_to_side), torch.tensor([length])])


def word_positions(slots: Tensor, num_directions: int) -> Tensor:
    """Word position of each slot (counted from 0), in the same shape; negative positions count from the right end.

    h = 1: 0, 1, 2, … (Eq. 5); h = 2: +1, -1, +2, -2, … (Eq. 7); h > 2: the first part of Eq. 10, the index of the
    round, 0 h times, 1 h times, …; its second part is :func:`slot_directions`.
    """
    rounds = slots // num_directions
    if num_directions == 2:
        return (rounds + 1) * (1 - 2 * (slots % 2))
    return rounds


def slot_directions(slots: Tensor, num_directions: int) -> Tensor:
    """Direction 0 … h-1 of each slot (counted from 0), in the same shape (second part of Eq. 10)."""
    return slots % num_directions


def attention_mask(queries: Tensor, keys: Tensor, order: GenerationOrder, kind: str = "interleaved") -> Tensor:
    """Attention mask between slots, bool (Q, K), True where query slot i may attend to key slot j.

    Args:
        queries: slots (counted from 0) of the queries, (Q,).
        keys: slots of the keys, (K,).
        order: h and c.
        kind: ``interleaved``: ⌈i/z⌉ ≥ ⌈j/z⌉ counted from 1 (Eq. 4, Eq. 8, 11, 12); ``vanilla``: i ≥ j, M(1, 1);
            ``independent-directions``: Eq. 4 within the same direction (Table 2, row 5).

    Raises:
        ValueError: for an unknown kind.
    """
    if kind not in ATTENTION_MASKS:
        raise ValueError(f"attention mask must be one of {', '.join(ATTENTION_MASKS)}, not {kind!r}")
    i, j = queries.unsqueeze(1), keys.unsqueeze(0)
    if kind == "vanilla":
        return i >= j
    z, h = order.words_per_step, order.num_directions
    seen = i // z >= j // z
    if kind == "independent-directions":
        seen = seen & (slot_directions(i, h) == slot_directions(j, h))
    return seen
