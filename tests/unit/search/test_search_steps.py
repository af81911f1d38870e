"""The search's pure functions, by hand-made tables and by exhaustive enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from amlp_fairseq.search.search_steps import (
    combine_words,
    deduplicate_ngrams,
    length_penalty,
    log_probabilities,
    row_permutation,
)

PAD, EOS = 1, 2

pytestmark = pytest.mark.usefixtures("operators")


def table(rows: list[list[float]]) -> torch.Tensor:
    """One hypothesis' probabilities (z, V) as log-probabilities (1, z, V)."""
    return torch.tensor([rows]).log()


@pytest.mark.parametrize("vocab", [1, 5, 4096, 10_001])
def test_log_probabilities(vocab: int) -> None:
    """Against float64, of small and large logits and some that are -inf; a row depends on that row alone."""
    torch.manual_seed(vocab)
    logits = torch.randn(3, 2, vocab) * torch.tensor([0.1, 10.0, 1000.0]).view(3, 1, 1)
    logits[0, 0, : vocab // 2] = -math.inf
    expected = logits.double().log_softmax(-1)
    alone = log_probabilities(logits[1:2].clone())
    found = log_probabilities(logits.clone())
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-6)
    assert torch.equal(found[1:2], alone)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_log_probabilities_of_what_is_no_number(wrong: float) -> None:
    """Such a row has no probabilities, and the others keep theirs."""
    logits = torch.randn(3, 1, 5000)
    expected = logits[[0, 2]].log_softmax(-1)
    logits[1, 0, 4500] = wrong
    found = log_probabilities(logits)
    torch.testing.assert_close(found[[0, 2]], expected)
    assert not found[1].isfinite().any()


@pytest.mark.parametrize("kind", ["half", "view"])
def test_log_probabilities_of_other_logits(kind: str) -> None:
    logits = torch.randn(2, 6, 50)
    logits = logits.bfloat16() if kind == "half" else logits[:, -2:]
    torch.testing.assert_close(log_probabilities(logits), logits.float().log_softmax(-1))


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


@pytest.mark.parametrize("behind", ["ignore", "count"])
@pytest.mark.parametrize("z", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 2, 8, 50])
def test_large_dictionaries(k: int, z: int, behind: str) -> None:
    """The definition over float64 tables, of rows of which one has no number in a slot and one few finite entries."""
    lprobs = torch.randn(5, z, 3001, generator=torch.Generator().manual_seed(k)).log_softmax(-1)
    lprobs[1, -1], lprobs[2, :, 20:] = math.nan, -math.inf
    found, expected = (combine_words(table, k, EOS, PAD, behind) for table in (lprobs, lprobs.double()))
    torch.testing.assert_close(found.scores, expected.scores.float())
    possible = expected.scores > -math.inf
    for name in ("words", "ends"):
        assert torch.equal(getattr(found, name)[possible], getattr(expected, name)[possible])
    torch.testing.assert_close(found.word_scores[possible], expected.word_scores[possible].float())


def test_forbidden_candidates_make_room_for_the_next_best() -> None:
    lprobs = table([[0.1, 0.0, 0.1, 0.5, 0.3], [0.1, 0.0, 0.1, 0.5, 0.3]])

    def no_word_twice(chosen: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return (chosen.unsqueeze(2) == candidates.view(1, 1, -1, 1)).any(dim=3)

    found = combine_words(lprobs, 2, EOS, PAD, "count", no_word_twice, most_forbidden=1)
    assert sorted(found.words[0].tolist()) == [[3, 4], [4, 3]]


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
        order = row_permutation(list(origins))
        assert sorted(order) == list(range(n))
        staying = sum(origins[row] == place for place, row in enumerate(order))
        orders = itertools.permutations(range(n))
        assert staying == max(sum(origins[row] == place for place, row in enumerate(each)) for each in orders)
