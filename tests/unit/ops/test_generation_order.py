"""Generation order, positions and masks against the paper's Figure 1 and Eq. 4-10."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amlp_fairseq.ops.generation_order import GenerationOrder, attention_mask, slot_directions, word_positions

# Words y1 … yn in the order in which they are generated, written by hand.
ORDERS = [
    (1, 1, False, [1]),
    (1, 4, False, [1, 2, 3, 4]),
    (2, 1, False, [1]),
    (2, 2, False, [1, 2]),
    (2, 5, False, [1, 5, 2, 4, 3]),
    (2, 6, False, [1, 6, 2, 5, 3, 4]),  # Figure 1(a); Eq. 6 ends with y_(n//2+1) = y4
    (2, 5, True, [3, 4, 2, 5, 1]),
    (2, 6, True, [3, 4, 2, 5, 1, 6]),
    (4, 8, False, [1, 5, 4, 8, 2, 6, 3, 7]),  # Eq. 9: the k-th words of y1..y4 and y5..y8 in turn
    (4, 3, False, [1, 3, 2]),  # y1, y2 and y3
    (4, 6, False, [1, 4, 3, 6, 2, 5]),  # Eq. 9
    (4, 7, False, [1, 5, 4, 7, 2, 6, 3]),  # y1..y4 and y5..y7
    (6, 12, False, [1, 5, 9, 4, 8, 12, 2, 6, 10, 3, 7, 11]),
    (6, 8, False, [1, 4, 7, 3, 6, 8, 2, 5]),  # y1..y3, y4..y6, y7..y8
    (4, 8, True, [2, 6, 3, 7, 1, 5, 4, 8]),
    (4, 7, True, [2, 6, 3, 7, 1, 5, 4]),
]


@pytest.mark.parametrize(("h", "n", "middle_to_side", "order"), ORDERS)
def test_order_by_hand(h: int, n: int, middle_to_side: bool, order: list[int]) -> None:
    words = torch.arange(1, n + 1)
    assert GenerationOrder(h, 1, middle_to_side).interleave(words).tolist() == order


@pytest.mark.parametrize("h", [1, 2, 4, 6])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_recover_inverts_interleave(h: int, c: int) -> None:
    for middle_to_side in (False, True) if h > 1 else (False,):
        pattern = GenerationOrder(h, c, middle_to_side)
        for n in range(201):
            words = torch.arange(n) + 7
            assert torch.equal(pattern.recover(pattern.interleave(words)), words)
            assert torch.equal(pattern.interleave(pattern.recover(words)), words)


@given(n=st.integers(0, 300), half=st.integers(1, 5), middle_to_side=st.booleans())
def test_the_order_is_equation_9(n: int, half: int, middle_to_side: bool) -> None:
    """Segment by segment in plain lists; and what the paper takes for granted of directions."""
    h = 2 * half
    pattern = GenerationOrder(h, 1, middle_to_side)
    sizes = [n // half + (i < n % half) for i in range(half)]
    words = iter(range(n))
    segments = []
    for size in sizes:
        segment = [next(words) for _ in range(size)]
        left, right = segment[: (size + 1) // 2], segment[(size + 1) // 2 :][::-1]
        if middle_to_side:
            left, right = left[::-1], right[::-1]
        segments.append([side[k] for k in range(len(left)) for side in (left, right) if k < len(side)])  # Eq. 6
    rounds = range(max(sizes, default=0))
    order = pattern.permutation(n)
    assert order.tolist() == [segment[k] for k in rounds for segment in segments if k < len(segment)]
    for d in range(h):
        assert set(order[d::h].tolist()) <= set(segments[d % half])
        ways = order[d::h].diff()
        assert bool((ways == (1 if pattern.reads_forward(d) else -1)).all())


def test_positions_by_hand() -> None:
    slots = torch.arange(8)
    assert word_positions(slots, 1).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]  # Eq. 5
    assert word_positions(slots, 2).tolist() == [1, -1, 2, -2, 3, -3, 4, -4]  # Eq. 7, Figure 1(a) and (e)
    assert word_positions(slots, 4).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]  # Eq. 10
    assert slot_directions(slots, 4).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


MASK_Z2 = """
110000
110000
111100
111100
111111
111111
"""  # Figure 1(c), for (h, c) = (2, 1) and (1, 2)
MASK_Z4 = """
111100
111100
111100
111100
111111
111111
"""  # Figure 1(f), for (4, 1) and (2, 2)
MASK_VANILLA = """
100000
110000
111000
111100
111110
111111
"""
MASK_INDEPENDENT = """
100000
010000
101000
010100
101010
010101
"""  # (2, 1): every direction sees itself alone
MASKS = [
    (2, 1, "interleaved", MASK_Z2),
    (1, 2, "interleaved", MASK_Z2),
    (4, 1, "interleaved", MASK_Z4),
    (2, 2, "interleaved", MASK_Z4),
    (1, 1, "interleaved", MASK_VANILLA),
    (2, 0, "interleaved", MASK_VANILLA),
    (4, 0, "interleaved", MASK_VANILLA),
    (2, 1, "vanilla", MASK_VANILLA),
    (2, 1, "independent-directions", MASK_INDEPENDENT),
]


@pytest.mark.parametrize(("h", "c", "kind", "table"), MASKS)
def test_masks_by_hand(h: int, c: int, kind: str, table: str) -> None:
    expected = [[mark == "1" for mark in line] for line in table.split()]
    slots = torch.arange(6)
    assert attention_mask(slots, slots, GenerationOrder(h, c), kind).tolist() == expected
    assert attention_mask(slots[3:], slots, GenerationOrder(h, c), kind).tolist() == expected[3:]


@given(h=st.sampled_from([1, 2, 4, 6]), c=st.integers(1, 3), n=st.integers(1, 40))
def test_mask_is_equation_4(h: int, c: int, n: int) -> None:
    slots = torch.arange(n)
    allowed = attention_mask(slots, slots, GenerationOrder(h, c))
    for i in range(1, n + 1):
        for j in range(1, n + 1):
            assert bool(allowed[i - 1, j - 1]) == (math.ceil(i / (h * c)) >= math.ceil(j / (h * c)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_directions": 3}, "--num-directions .* not 3"),
        ({"num_directions": 0}, "--num-directions .* not 0"),
        ({"words_per_direction": -1}, "--words-per-direction .* not -1"),
        ({"words_per_direction": 0, "num_directions": 1}, "--words-per-direction 0 needs at least two directions"),
        ({"num_directions": 1, "middle_to_side": True}, "--middle-to-side .* --num-directions is 1"),
    ],
)
def test_patterns_that_define_no_order_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerationOrder(**arguments)


def test_unknown_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="interleaved, vanilla, independent-directions, not 'causal'"):
        attention_mask(torch.arange(2), torch.arange(2), GenerationOrder(), "causal")
