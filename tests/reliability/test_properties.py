"""Index functions, combinations of words and datasets on any input, against definitions in plain Python."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
import toy
from fairseq.data import LanguagePairDataset, ListDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.data.start_symbol_pair_dataset import StartSymbolPairDataset
from amlp_fairseq.ops.generation_order import (
    ATTENTION_MASKS,
    GenerationOrder,
    attention_mask,
    slot_directions,
    word_positions,
)
from amlp_fairseq.search.search_steps import combine_words

BOS, PAD, EOS = 0, 1, 2
DICTIONARY = toy.dictionary(6)


@st.composite
def orders(draw: st.DrawFn) -> GenerationOrder:
    h = draw(st.sampled_from([1, 2, 4, 6, 8]))
    return GenerationOrder(h, draw(st.integers(int(h == 1), 3)), h > 1 and draw(st.booleans()))


@given(order=orders(), length=st.integers(0, 200), width=st.integers(0, 3))
def test_words_of_any_shape_come_back(order: GenerationOrder, length: int, width: int) -> None:
    words = torch.arange(length * width).view(length, width)
    assert torch.equal(order.recover(order.interleave(words)), words)
    assert sorted(order.permutation(length).tolist()) == list(range(length))
    steps = order.padded_length(length) / order.words_per_step
    assert steps == math.ceil(length / order.words_per_step)


@given(slots=st.lists(st.integers(0, 10_000), max_size=20), h=st.sampled_from([1, 2, 4, 6]))
def test_positions_and_directions_name_one_slot(slots: list[int], h: int) -> None:
    places = torch.tensor(slots, dtype=torch.long)
    positions, directions = word_positions(places, h), slot_directions(places, h)
    named = zip(positions.tolist(), directions.tolist(), strict=True)
    assert [h * ((abs(p) - 1) if h == 2 else p) + d for p, d in named] == slots
    assert h != 2 or torch.equal(positions < 0, directions == 1)


@given(
    order=orders(),
    queries=st.lists(st.integers(0, 60), max_size=9),
    keys=st.lists(st.integers(0, 60), max_size=9),
    kind=st.sampled_from(ATTENTION_MASKS),
)
def test_masks_of_any_slots(order: GenerationOrder, queries: list[int], keys: list[int], kind: str) -> None:
    """Not only of 0, 1, 2, …; and of directions that take turns."""
    h, z = order.num_directions, order.words_per_step
    definitions = {
        "vanilla": lambda i, j: j <= i,
        "interleaved": lambda i, j: j < (i // z + 1) * z,
        "independent-directions": lambda i, j: j < (i // z + 1) * z and (i - j) % h == 0,
    }
    found = attention_mask(torch.tensor(queries).long(), torch.tensor(keys).long(), order, kind)
    assert found.shape == (len(queries), len(keys))
    assert found.tolist() == [[definitions[kind](i, j) for j in keys] for i in queries]


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    """A table of log-probabilities, some of them impossible, and which word may not come after which in a step."""
    rows, z, vocab = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(4, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    lprobs = (2 * torch.randn(rows, z, vocab, dtype=torch.float64, generator=generator)).log_softmax(-1)
    row, slot = st.integers(0, rows - 1), st.integers(0, z - 1)
    for place in draw(st.lists(st.tuples(row, slot, st.integers(0, vocab - 1)), max_size=5)):
        lprobs[place] = -math.inf
    for place in draw(st.lists(st.tuples(row, slot), max_size=1)):
        lprobs[place] = math.nan
    lprobs[..., PAD] = -math.inf
    words = st.sampled_from([0, *range(3, vocab)])
    pairs = draw(st.lists(st.tuples(words, words), max_size=6))
    never = draw(st.sets(words, max_size=2))
    behind = draw(st.sampled_from(["ignore", "count"]))
    return {"lprobs": lprobs, "k": draw(st.integers(1, 12)), "behind": behind, "pairs": pairs, "never": never}


def search(lprobs: torch.Tensor, k: int, behind: str, pairs: list[tuple[int, int]], never: set[int]) -> Any:
    banned = {word: {b for a, b in pairs if a == word} for word, _ in pairs}

    def forbidden(chosen: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return torch.tensor(
            [
                [
                    [option in never or any(option in banned.get(word, ()) for word in way) for option in options]
                    for way in ways
                ]
                for ways, options in zip(chosen.tolist(), candidates.tolist(), strict=True)
            ]
        )

    some = forbidden if pairs or never else None
    most = len(never | {b for _, b in pairs})
    return combine_words(lprobs, k, EOS, PAD, behind, some, max_forbidden=most)


def pruned(table: list[list[float]], k: int, behind: str, pairs: list[tuple[int, int]], never: set[int]) -> list[Any]:
    """Lines 10 to 14 word by word: after each slot the k best prefixes stay, after the first as many more as can turn
    out to be useless; those that have ended wait for the end."""
    z, ended, prefixes = len(table), [], [((), 0.0)]
    ignore, useless = behind == "ignore" and z > 1, len(never | {b for _, b in pairs})
    for slot, scores in enumerate(table):
        longer, words_of_slot = [], sorted(enumerate(scores), key=lambda each: -each[1])
        for words, score in prefixes:
            for word, more in words_of_slot if slot else words_of_slot[: k + ignore + useless]:
                if word in never or any((before, word) in pairs for before in words) or not more > -math.inf:
                    continue
                found = ((*words, word), score + more)
                (ended if ignore and word == EOS and slot < z - 1 else longer).append(found)
        prefixes = sorted(longer, key=lambda each: -each[1])[: k if slot else len(longer)]
    # An end that is not among the first slot's words ends a step all the same.
    if ignore and not any(words == (EOS,) for words, _ in ended) and table[0][EOS] > -math.inf:
        ended.append(((EOS,), table[0][EOS]))
    found = sorted([*prefixes, *ended], key=lambda each: -each[1])[:k]
    return [(words + (PAD,) * (z - len(words)), score) for words, score in found]


def everything(table: list[list[float]], k: int, behind: str, never: set[int]) -> list[Any]:
    """The k best of all ways to fill the slots."""
    z, scores = len(table), {}
    for words in itertools.product(range(len(table[0])), repeat=z):
        end = words.index(EOS) + 1 if EOS in words and behind == "ignore" else z
        score = sum(table[slot][word] for slot, word in enumerate(words[:end]))
        if score > -math.inf and not never & {*words[:end]}:
            scores[words[:end] + (PAD,) * (z - end)] = score
    return sorted(scores.items(), key=lambda each: -each[1])[:k]


def assert_found(found: Any, row: int, expected: list[Any], table: list[list[float]]) -> None:
    possible = found.scores[row].isfinite().tolist()
    assert possible == [True] * len(expected) + [False] * (len(possible) - len(expected))
    for column, (words, score) in enumerate(expected):
        assert tuple(found.words[row, column].tolist()) == words
        assert abs(float(found.scores[row, column]) - score) < 1e-9
        ends = words.index(EOS) if EOS in words else len(words)
        assert int(found.ends[row, column]) == ends
        of_words = [0.0 if word == PAD else table[slot][word] for slot, word in enumerate(words)]
        assert found.word_scores[row, column].tolist() == of_words


@settings(max_examples=60, deadline=None)
@given(case=searches())
def test_combinations_are_those_of_the_definition(case: dict[str, Any]) -> None:
    found = search(**case)
    assert found.words.shape[1] <= case["k"]
    for row, table in enumerate(case["lprobs"].tolist()):
        assert_found(found, row, pruned(table, case["k"], case["behind"], case["pairs"], case["never"]), table)


@settings(max_examples=60, deadline=None)
@given(case=searches())
def test_combinations_are_the_best_of_all(case: dict[str, Any]) -> None:
    """Where a slot's words are forbidden or not, whatever stands before."""
    found = search(**{**case, "pairs": []})
    for row, table in enumerate(case["lprobs"].tolist()):
        assert_found(found, row, everything(table, case["k"], case["behind"], case["never"]), table)


sentences = st.lists(st.integers(4, len(DICTIONARY) - 1), max_size=9)
collections = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8)


def pairs_of(texts: list[tuple[list[int], list[int]]], **options: Any) -> LanguagePairDataset:
    parts: list[Any] = []
    for side in zip(*texts, strict=True):
        rows = [torch.tensor([*words, EOS]) for words in side]
        sizes = np.array([len(row) for row in rows])
        parts += [ListDataset(rows, sizes), sizes, DICTIONARY]
    return LanguagePairDataset(*parts, **options)


def batches(data: Any, numbers: list[int], size: int) -> list[dict[str, Any]]:
    return [data.collater([data[i] for i in numbers[start : start + size]]) for start in range(0, len(numbers), size)]


def rows_of(batch: dict[str, Any], *names: str) -> list[list[list[int]]]:
    """Rows without padding, one list for each name."""
    tables = [{**batch, **batch["net_input"]}[name] for name in names]
    return [[[word for word in row if word != PAD] for row in table.tolist()] for table in tables]


@settings(deadline=None)
@given(
    texts=collections, order=orders(), size=st.integers(1, 8), chance=st.randoms(), multiple=st.sampled_from([1, 4, 8])
)
def test_batches_in_generation_order_lose_nothing(
    texts: list[Any], order: GenerationOrder, size: int, chance: Any, multiple: int
) -> None:
    numbers = chance.sample(range(len(texts)), len(texts))
    seen = []
    for batch in batches(InterleavedPairDataset(pairs_of(texts, pad_to_multiple=multiple), order), numbers, size):
        ids, z = batch["id"].tolist(), order.words_per_step
        seen += ids
        expected = [texts[i] for i in ids]
        sources, targets, interleaved = rows_of(batch, "src_tokens", "target", "target_interleaved")
        assert sources == [[*source, EOS] for source, _ in expected]
        assert targets == [[*target, EOS] for _, target in expected]
        for (_, target), words in zip(expected, interleaved, strict=True):
            assert words[-1] == EOS
            assert order.recover(torch.tensor(words[:-1])).tolist() == target
        # Each input is the word of the step before.
        inputs, outputs = batch["net_input"]["prev_output_tokens"], batch["target_interleaved"]
        assert inputs.shape == outputs.shape
        assert (inputs[:, :z] == EOS).all()
        for (_, target), given_words, words in zip(expected, inputs.tolist(), outputs.tolist(), strict=True):
            length = order.padded_length(len(target) + 1)
            assert [word for word in given_words[z:length] if word != PAD] == [
                word for word in words[: length - z] if word not in (PAD, EOS)
            ]
            assert {*given_words[length:]} <= {PAD}
        assert batch["ntokens"] == sum(len(target) + 1 for _, target in expected)
    assert sorted(seen) == sorted(numbers)


@settings(deadline=None)
@given(texts=collections, size=st.integers(1, 8), chance=st.randoms(), left=st.booleans())
def test_batches_with_start_symbols_lose_nothing(texts: list[Any], size: int, chance: Any, left: bool) -> None:
    numbers = chance.sample(range(len(texts)), len(texts))
    data = StartSymbolPairDataset(pairs_of(texts, left_pad_source=left), "any")
    seen = []
    for batch in batches(data, numbers, size):
        seen += batch["id"].tolist()
        expected = [texts[i] for i in batch["id"].tolist()]
        assert rows_of(batch, "src_tokens", "target") == [
            [[BOS, *source, EOS] for source, _ in expected],
            [[*target, EOS] for _, target in expected],
        ]
        assert batch["net_input"]["src_lengths"].tolist() == [len(source) + 2 for source, _ in expected]
    assert sorted(seen) == sorted(numbers)


@settings(deadline=None)
@given(texts=collections, order=orders(), most=st.integers(11, 40), starts=st.booleans())
def test_every_sentence_is_in_one_batch(texts: list[Any], order: GenerationOrder, most: int, starts: bool) -> None:
    pairs = pairs_of(texts)
    data = StartSymbolPairDataset(pairs, "any") if starts else InterleavedPairDataset(pairs, order)
    made = data.batch_by_size(data.ordered_indices(), max_tokens=most)
    assert sorted(int(i) for batch in made for i in batch) == list(range(len(texts)))
    longest = [max(max(len(source), len(target)) for source, target in (texts[i] for i in batch)) for batch in made]
    assert all((length + 1 + starts) * len(batch) <= most for length, batch in zip(longest, made, strict=True))
