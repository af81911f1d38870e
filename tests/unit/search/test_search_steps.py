"""The search's pure functions, by hand-made tables and by exhaustive enumeration."""

from __future__ import annotations

import itertools
import math
import random
from functools import partial

import pytest
import torch

from amlp_fairseq.order import GenerationOrder
from amlp_fairseq.search.ngram_blocking import NGramBlocker
from amlp_fairseq.search.search_steps import (
    combine_words,
    deduplicate_ngrams,
    forbid_end,
    force_end,
    length_penalty,
    stay_put,
)

PAD, EOS = 1, 2


def table(rows: list[list[float]]) -> torch.Tensor:
    """One hypothesis' probabilities (z, V) as log-probabilities (1, z, V)."""
    return torch.tensor([rows]).log()


def test_combinations_by_hand() -> None:
    # Words: 0, pad, end, 3, 4.
    lprobs = table([[0.5, 0.0, 0.2, 0.3, 0.0], [0.6, 0.0, 0.3, 0.1, 0.0]])
    found = combine_words(lprobs, 4, EOS, PAD)
    # 0·0 .30, end .20 (nothing behind it counts), 3·0 .18, 0·end .15
    assert found.words.tolist() == [[[0, 0], [EOS, PAD], [3, 0], [0, EOS]]]
    torch.testing.assert_close(found.scores.exp(), torch.tensor([[0.30, 0.20, 0.18, 0.15]]))
    assert found.ends.tolist() == [[2, 0, 2, 1]]
    assert found.word_scores[0, 1].tolist() == pytest.approx([math.log(0.2), 0.0])

    counted = combine_words(lprobs, 4, EOS, PAD, words_behind_end="count")
    # 0·0 .30, 3·0 .18, 0·end .15, end·0 .12
    assert counted.words.tolist() == [[[0, 0], [3, 0], [0, EOS], [EOS, 0]]]
    torch.testing.assert_close(counted.scores.exp(), torch.tensor([[0.30, 0.18, 0.15, 0.12]]))
    assert counted.ends.tolist() == [[2, 2, 1, 0]]


@pytest.mark.parametrize("behind", ["ignore", "count"])
@pytest.mark.parametrize("z", [1, 2, 3])
def test_combinations_equal_enumeration(z: int, behind: str) -> None:
    n, vocab, k = 3, 5, 7
    lprobs = torch.randn(n, z, vocab, generator=torch.Generator().manual_seed(z)).log_softmax(-1)
    lprobs[..., PAD] = -math.inf
    found = combine_words(lprobs, k, EOS, PAD, behind)
    for row in range(n):
        scores: dict[tuple[int, ...], float] = {}
        for words in itertools.product(range(vocab), repeat=z):
            if PAD in words:
                continue
            end = words.index(EOS) + 1 if EOS in words and behind == "ignore" else z
            cut = words[:end] + (PAD,) * (z - end)
            scores[cut] = sum(float(lprobs[row, slot, word]) for slot, word in enumerate(words[:end]))
        best = sorted(scores.items(), key=lambda item: -item[1])[:k]
        assert [tuple(words) for words in found.words[row].tolist()][: len(best)] == [words for words, _ in best]
        torch.testing.assert_close(found.scores[row, : len(best)], torch.tensor([score for _, score in best]))


def test_forbidden_candidates_make_room_for_the_next_best() -> None:
    lprobs = table([[0.1, 0.0, 0.1, 0.5, 0.3], [0.1, 0.0, 0.1, 0.5, 0.3]])

    def no_word_twice(chosen: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return (chosen.unsqueeze(2) == candidates.view(1, 1, -1, 1)).any(dim=3)

    found = combine_words(lprobs, 2, EOS, PAD, "count", no_word_twice, most_forbidden=1)
    assert sorted(found.words[0].tolist()) == [[3, 4], [4, 3]]


def test_end_is_forbidden_before_the_shortest_and_forced_after_the_longest() -> None:
    lprobs = torch.full((3, 2, 4), -1.0)
    # Slots 2 and 3; at least 3 words; at most 2, 3 and 9 words.
    forbid_end(lprobs, 2, 3, EOS)
    force_end(lprobs, 2, torch.tensor([9, 3, 9]), EOS)
    assert lprobs[0].tolist() == [[-1, -1, -math.inf, -1], [-1, -1, -1, -1]]
    assert lprobs[1].tolist() == [[-1, -1, -math.inf, -1], [-math.inf, -math.inf, -1, -math.inf]]
    assert torch.equal(lprobs[0], lprobs[2])


def test_length_penalties() -> None:
    length = torch.tensor(7)
    assert float(length_penalty(length, 0.6, "fairseq")) == pytest.approx(7**0.6)
    assert float(length_penalty(length, 0.6, "gnmt")) == pytest.approx(2**0.6)


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("a b c", 2, "a b c"),
        ("a a b a", 1, "a b a"),
        ("a a a a", 1, "a"),
        ("a b a b c", 1, "a b a b c"),
        ("a b a b c", 2, "a b c"),
        ("a a b a a b c", 3, "a b c"),
        ("", 2, ""),
    ],
)
def test_deduplication(text: str, size: int, expected: str) -> None:
    words = text.split()
    assert [words[i] for i in deduplicate_ngrams([ord(w) for w in words], size)] == expected.split()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_as_many_rows_as_can_stay_where_they_are(n: int) -> None:
    for origins in itertools.product(range(n + 2), repeat=n):
        order = stay_put(list(origins))
        assert sorted(order) == list(range(n))
        staying = sum(origins[row] == place for place, row in enumerate(order))
        orders = itertools.permutations(range(n))
        assert staying == max(sum(origins[row] == place for place, row in enumerate(each)) for each in orders)


def test_banned_words_of_two_directions() -> None:
    blocker = NGramBlocker(2, GenerationOrder(2))
    # Generated 1 9 2 8 1: the text is 1 2 1 … 8 9, so "1 2", "2 1" and "8 9" are taken.
    words = [1, 9, 2, 8, 1]
    assert blocker.banned([*words, 9], 6) == {2}  # "1 2" again
    assert blocker.banned(words, 5) == set()  # what precedes 8 may be anything
    assert blocker.banned([1, 9, 2, 8, 1, 9], 7) == {8}  # the right direction reads backwards: "8 9" again
    assert NGramBlocker(1, GenerationOrder(2)).banned(words, 5) == {1, 2, 8, 9}


@pytest.mark.parametrize(("h", "size", "written"), [(1, 1, 2), (1, 2, 4), (1, 3, 6), (2, 1, 4), (2, 2, 8), (2, 3, 12)])
def test_blocked_combinations_equal_enumeration(h: int, size: int, written: int) -> None:
    """Two words per direction: of all ways to go on, those that repeat no n-gram when each side is read as text."""
    words, z, rng = (0, 3, 4, 5, 6), 2 * h, random.Random(size)

    def repeats(generated: tuple[int, ...]) -> bool:
        sides = [generated] if h == 1 else [generated[0::2], generated[1::2][::-1]]
        ngrams = [side[i : i + size] for side in sides for i in range(len(side) - size + 1)]
        return len(set(ngrams)) < len(ngrams)

    histories: set[tuple[int, ...]] = set()
    while len(histories) < 16:
        history = tuple(rng.choices(words, k=written))
        if not repeats(history):
            histories.add(history)
    tokens = torch.tensor(sorted(histories))
    lprobs = torch.randn(16, z, 7, generator=torch.Generator().manual_seed(size)).log_softmax(-1)
    lprobs[..., PAD] = -math.inf

    blocker, blocked = NGramBlocker(size, GenerationOrder(h, 2)), lprobs.clone()
    blocker.forbid_history(blocked, tokens)
    forbidden = partial(blocker.forbid_within_step, tokens)
    found = combine_words(blocked, 7**z, EOS, PAD, forbidden=forbidden, most_forbidden=written + z)
    for row, history in enumerate(tokens.tolist()):
        expected = {}
        for n in range(z + 1):
            for step in itertools.product(words, repeat=n):
                if not repeats((*history, *step)):
                    ended = (*step, EOS, *[PAD] * z)[:z]
                    scored = step if n == z else (*step, EOS)
                    expected[ended] = sum(float(lprobs[row, slot, word]) for slot, word in enumerate(scored))
        allowed = found.scores[row].isfinite()
        steps = [tuple(step) for step in found.words[row, allowed].tolist()]
        assert dict(zip(steps, found.scores[row, allowed].tolist(), strict=True)) == pytest.approx(expected, abs=1e-5)


def test_seams_are_checked_in_reading_order() -> None:
    blocker = NGramBlocker(2, GenerationOrder(2))
    assert blocker.repeats([1, 2, 2, 1, 3])  # text 1 2 3 1 2
    assert not blocker.repeats([1, 2, 2, 3, 1])  # text 1 2 1 3 2
