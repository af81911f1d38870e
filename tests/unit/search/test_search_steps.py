"""The search's pure functions against hand-made tables and exhaustive enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import graph_emulator
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amlp_fairseq.engine.repetitions import deduplicate_ngrams
from amlp_fairseq.search.search_steps import (
    Continuations,
    advance,
    combine_words,
    length_penalty,
    log_probabilities,
    row_permutation,
)

PAD, EOS = 1, 2


def table(rows: list[list[float]]) -> torch.Tensor:
    """One hypothesis' probabilities (z, V) as log-probabilities (1, z, V)."""
    return torch.tensor([rows]).log()


@pytest.mark.parametrize("vocab", [1, 5, 4096, 10_001])
def test_log_probabilities(vocab: int) -> None:
    """Against float64, for small, large and -inf logits; rows do not depend on each other."""
    torch.manual_seed(vocab)
    logits = torch.randn(3, 2, vocab) * torch.tensor([0.1, 10.0, 1000.0]).view(3, 1, 1)
    logits[0, 0, : vocab // 2] = -math.inf
    expected = logits.double().log_softmax(-1)
    alone = log_probabilities(logits[1:2].clone())
    actual = log_probabilities(logits.clone())
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-6)
    assert torch.equal(actual[1:2], alone)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_log_probabilities_of_what_is_no_number(wrong: float) -> None:
    """Only the row itself loses its probabilities."""
    logits = torch.randn(3, 1, 5000)
    expected = logits[[0, 2]].log_softmax(-1)
    logits[1, 0, 4500] = wrong
    actual = log_probabilities(logits)
    torch.testing.assert_close(actual[[0, 2]], expected)
    assert not actual[1].isfinite().any()


@pytest.mark.parametrize("kind", ["half", "view"])
def test_log_probabilities_of_other_logits(kind: str) -> None:
    logits = torch.randn(2, 6, 50)
    logits = logits.bfloat16() if kind == "half" else logits[:, -2:]
    torch.testing.assert_close(log_probabilities(logits), logits.float().log_softmax(-1))


def test_combinations_by_hand() -> None:
    # Words: 0, pad, end, 3, 4.
    lprobs = table([[0.5, 0.0, 0.2, 0.3, 0.0], [0.6, 0.0, 0.3, 0.1, 0.0]])
    actual = combine_words(lprobs, 4, EOS, PAD)
    # 0·0 .30, end .20 (nothing after it counts), 3·0 .18, 0·end .15
    assert actual.words.tolist() == [[[0, 0], [EOS, PAD], [3, 0], [0, EOS]]]
    torch.testing.assert_close(actual.scores.exp(), torch.tensor([[0.30, 0.20, 0.18, 0.15]]))
    assert actual.ends.tolist() == [[2, 0, 2, 1]]
    assert actual.word_scores[0, 1].tolist() == pytest.approx([math.log(0.2), 0.0])

    counted = combine_words(lprobs, 4, EOS, PAD, words_after_end="count")
    # 0·0 .30, 3·0 .18, 0·end .15, end·0 .12
    assert counted.words.tolist() == [[[0, 0], [3, 0], [0, EOS], [EOS, 0]]]
    torch.testing.assert_close(counted.scores.exp(), torch.tensor([[0.30, 0.18, 0.15, 0.12]]))
    assert counted.ends.tolist() == [[2, 2, 1, 0]]


@pytest.mark.parametrize("ending", ["ignore", "count"])
@pytest.mark.parametrize("z", [1, 2, 3])
def test_combinations_equal_enumeration(z: int, ending: str) -> None:
    n, vocab, k = 3, 5, 7
    lprobs = torch.randn(n, z, vocab, generator=torch.Generator().manual_seed(z)).log_softmax(-1)
    lprobs[..., PAD] = -math.inf
    actual = combine_words(lprobs, k, EOS, PAD, ending)
    for row in range(n):
        scores: dict[tuple[int, ...], float] = {}
        for words in itertools.product(range(vocab), repeat=z):
            if PAD in words:
                continue
            end = words.index(EOS) + 1 if EOS in words and ending == "ignore" else z
            cut = words[:end] + (PAD,) * (z - end)
            scores[cut] = sum(float(lprobs[row, slot, word]) for slot, word in enumerate(words[:end]))
        best = sorted(scores.items(), key=lambda item: -item[1])[:k]
        assert [tuple(words) for words in actual.words[row].tolist()][: len(best)] == [words for words, _ in best]
        torch.testing.assert_close(actual.scores[row, : len(best)], torch.tensor([score for _, score in best]))


@pytest.mark.parametrize(
    ("k", "z", "ending"), [(1, 1, "ignore"), (1, 2, "ignore"), (8, 4, "ignore"), (8, 2, "count"), (50, 4, "ignore")]
)
def test_large_dictionaries(k: int, z: int, ending: str) -> None:
    """Against the definition over float64 tables. One row has NaN in a slot, one few finite entries, and one the worst
    score for the end symbol."""
    lprobs = torch.randn(5, z, 3001, generator=torch.Generator().manual_seed(k)).log_softmax(-1)
    lprobs[1, -1], lprobs[2, :, 20:], lprobs[3, :, EOS] = math.nan, -math.inf, -100.0
    actual, expected = (combine_words(table, k, EOS, PAD, ending) for table in (lprobs, lprobs.double()))
    torch.testing.assert_close(actual.scores, expected.scores.float())
    possible = expected.scores > -math.inf
    for name in ("words", "ends"):
        assert torch.equal(getattr(actual, name)[possible], getattr(expected, name)[possible])
    torch.testing.assert_close(actual.word_scores[possible], expected.word_scores[possible].float())


@pytest.mark.parametrize("ending", ["ignore", "count"])
@pytest.mark.parametrize("z", [1, 2, 4])
def test_combining_does_not_wait_for_a_gpu(z: int, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copies between host and device, so that the CPU can launch a step's kernels ahead."""
    lprobs, used = torch.randn(4, z, 5000).log_softmax(-1), []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            used.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Operators():
        combine_words(lprobs, 8, EOS, PAD, ending)
    assert "topk" in used
    assert not {*used} & {*graph_emulator.REFUSED, "lift_fresh"}  # lift_fresh: a tensor is made of Python's numbers


def test_forbidden_candidates_make_room_for_the_next_best() -> None:
    lprobs = table([[0.1, 0.0, 0.1, 0.5, 0.3], [0.1, 0.0, 0.1, 0.5, 0.3]])

    def no_word_twice(chosen: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return (chosen.unsqueeze(2) == candidates.view(1, 1, -1, 1)).any(dim=3)

    actual = combine_words(lprobs, 2, EOS, PAD, "count", no_word_twice, max_forbidden=1)
    assert sorted(actual.words[0].tolist()) == [[3, 4], [4, 3]]


def test_hypotheses_that_go_on_and_end_by_hand() -> None:
    """Two sentences with two rows each, steps of two words; the second sentence has one finished hypothesis."""
    tokens = torch.tensor([[EOS, EOS, 5, 6], [EOS, EOS, 6, 5], [EOS, EOS, 7, 7], [EOS, EOS, 8, 8]])
    word_scores = torch.tensor([[-0.5, -0.5], [-1.0, -1.0], [-0.25, -0.25], [-4.0, -4.0]])
    words = torch.tensor(
        [[[3, 4], [3, EOS]], [[4, 4], [EOS, PAD]], [[EOS, PAD], [9, 9]], [[9, 8], [EOS, PAD]]],
    )
    scores = torch.tensor([[-0.5, -0.75], [-0.25, -3.0], [-0.5, -1.0], [-1.0, -2.0]])
    both = scores.unsqueeze(2) / torch.tensor([2.0, 2.0])
    both[words == PAD] = 0
    both = both.mT.contiguous().mT  # as combine_words may leave them in memory
    ends = words.eq(EOS).int().argmax(dim=2).long().where(words.eq(EOS).any(dim=2), 2)
    update = advance(
        tokens,
        word_scores,
        torch.tensor([[-1.0, -2.0], [-0.5, -8.0]]),
        [0, 1],
        Continuations(scores, words, both, ends),
    )
    # Totals of the first sentence: 3 4 -1.5, 3 end -1.75, 4 4 -2.25, end -5; of the second: end -1, 9 9 -1.5, 9 8 -9,
    # end -10.
    assert update.remaining == [0]
    assert update.scores[0].tolist() == [-1.5, -2.25]
    assert update.rows is not None
    assert update.rows[:2].tolist() == [0, 1]
    assert update.words[:2].tolist() == [[3, 4], [4, 4]]
    assert update.word_scores[:2].tolist() == [[-0.25, -0.25], [-0.125, -0.125]]
    rows, lengths, totals, texts, text_scores = update.finished
    assert (rows, lengths) == ([0, 2], [3, 2])
    assert totals == [-1.0 - 0.375 - 0.375, -0.5 - 0.25]
    assert [each.tolist() for each in texts] == [[5, 6, 3, EOS], [7, 7, EOS]]
    assert [each.tolist() for each in text_scores] == [[-0.5, -0.5, -0.375, -0.375], [-0.25, -0.25, -0.25]]


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize(("beam", "k", "z"), [(1, 1, 1), (1, 2, 3), (3, 6, 1), (4, 8, 2)])
def test_what_becomes_of_hypotheses_equals_enumeration(beam: int, k: int, z: int, keep_all: bool) -> None:
    """Against sorted lists, for random steps in which many hypotheses end and some have no finite score."""
    sentences, written = 40, 2 * z
    generator = torch.Generator().manual_seed(beam)
    rows = sentences * beam

    def random(*shape: int) -> torch.Tensor:
        return -torch.rand(*shape, generator=generator)

    tokens = torch.randint(3, 9, (rows, z + written), generator=generator)
    words = torch.randint(EOS, 6, (rows, k, z), generator=generator)
    ends = words.ne(EOS).cumprod(dim=2).sum(dim=2)
    step_scores, scores = random(rows, k).masked_fill(random(rows, k) < -0.8, -math.inf), random(sentences, beam)
    finished_counts = torch.randint(0, beam, (sentences,), generator=generator).tolist()
    word_scores, new_scores = random(rows, written), random(rows, k, z)
    update = advance(
        tokens, word_scores, scores, finished_counts, Continuations(step_scores, words, new_scores, ends), keep_all
    )
    remaining, ended = [], []
    for sentence in range(sentences):
        continuations = [
            (row, continuation) for row in range(sentence * beam, (sentence + 1) * beam) for continuation in range(k)
        ]
        total = {
            (row, continuation): float(scores.flatten()[row] + step_scores[row, continuation])
            for row, continuation in continuations
        }
        continuations = sorted(
            (each for each in continuations if total[each] > -math.inf), key=lambda each: -total[each]
        )
        complete = [each for each in (continuations if keep_all else continuations[:beam]) if ends[each] < z]
        complete = complete if keep_all else complete[: beam - finished_counts[sentence]]
        ended += complete
        going = [each for each in continuations if ends[each] == z][:beam]
        if not going or finished_counts[sentence] + len(complete) >= beam:
            continue
        remaining.append(sentence)
        position = slice(sentence * beam, sentence * beam + len(going))
        if len(going) == beam:
            origins = (
                range(sentence * beam, (sentence + 1) * beam) if update.rows is None else update.rows[position].tolist()
            )
            kept = (
                update.scores[sentence].tolist(),
                update.words[position].tolist(),
                update.word_scores[position].tolist(),
            )
            assert sorted(zip(origins, *kept, strict=True), key=lambda each: -each[1]) == [
                (each[0], total[each], words[each].tolist(), new_scores[each].tolist()) for each in going
            ]
        finite = sorted(score for score in update.scores[sentence].tolist() if score > -math.inf)
        assert finite == sorted(total[each] for each in going)
    assert update.remaining == remaining
    assert update.finished.rows == [row for row, _ in ended]
    assert update.finished.lengths == [written + int(ends[each]) for each in ended]
    for each, total, text, text_scores in zip(ended, *update.finished[2:], strict=True):
        row, end = each[0], int(ends[each]) + 1
        assert text.tolist() == [*tokens[row, z:].tolist(), *words[each][:end].tolist()]
        assert text_scores.tolist() == [*word_scores[row].tolist(), *new_scores[each][:end].tolist()]
        assert total == pytest.approx(float(word_scores[row].double().sum() + new_scores[each].double().sum()))


def test_length_penalties() -> None:
    length = torch.tensor(7)
    assert float(length_penalty(length, 0.6, "fairseq")) == pytest.approx(7**0.6)
    assert float(length_penalty(length, 0.6, "gnmt")) == pytest.approx(2**0.6)
    assert float(length_penalty(length, -1, "fairseq")) == pytest.approx(1 / 7)


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
        staying = sum(origins[row] == position for position, row in enumerate(order))
        orders = itertools.permutations(range(n))
        assert staying == max(sum(origins[row] == position for position, row in enumerate(each)) for each in orders)
