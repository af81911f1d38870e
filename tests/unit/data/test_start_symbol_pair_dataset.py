"""Pairs with start symbols, against fairseq's pairs and by hand."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch
import toy
from fairseq.data import LanguagePairDataset, ListDataset

from amlp_fairseq.data.start_symbol_pair_dataset import StartSymbolPairDataset

BOS, PAD, EOS = 0, 1, 2
DICTIONARY = toy.dictionary(20)
SOURCES = [[4, 5, 6], [7], [8, 9]]
TARGETS = [[14], [15, 16, 17, 18], [19, 20]]


def pairs(targets: list[list[int]] | None = TARGETS, **options: object) -> LanguagePairDataset:
    def side(lines: list[list[int]]) -> tuple[ListDataset, np.ndarray]:
        rows = [torch.tensor([*words, EOS]) for words in lines]
        sizes = np.array([len(row) for row in rows])
        return ListDataset(rows, sizes), sizes

    if targets is None:
        return LanguagePairDataset(*side(SOURCES), DICTIONARY, tgt_dict=DICTIONARY, **options)
    return LanguagePairDataset(*side(SOURCES), DICTIONARY, *side(targets), DICTIONARY, **options)


def batch(data: LanguagePairDataset) -> dict:
    return data.collater([data[i] for i in range(len(data))])


def test_sources_begin_with_the_start_symbol_and_targets_do_not() -> None:
    found = batch(StartSymbolPairDataset(pairs(), "test"))
    assert found["id"].tolist() == [0, 2, 1]
    assert found["net_input"]["src_tokens"].tolist() == [
        [BOS, 4, 5, 6, EOS],
        [PAD, BOS, 8, 9, EOS],
        [PAD, PAD, BOS, 7, EOS],
    ]
    assert found["net_input"]["src_lengths"].tolist() == [5, 4, 3]
    assert found["target"].tolist() == batch(pairs())["target"].tolist()
    assert found["ntokens"] == 10


def test_sizes_count_the_start_symbol_of_both_sides() -> None:
    data = StartSymbolPairDataset(pairs(), "test")
    assert data.sizes.tolist() == [[5, 3], [3, 6], [4, 4]]
    assert [data.size(i) for i in range(3)] == [(5, 3), (3, 6), (4, 4)]
    assert [data.num_tokens(i) for i in range(3)] == data.num_tokens_vec(np.arange(3)).tolist() == [5, 6, 4]
    kept, left_out = data.filter_indices_by_size(np.arange(3), (4, 6))
    assert (kept.tolist(), left_out) == ([1, 2], [0])
    batches = data.batch_by_size(np.array([2, 0, 1]), max_tokens=10)
    assert [list(each) for each in batches] == [[2, 0], [1]]


def test_pairs_without_targets() -> None:
    data = StartSymbolPairDataset(pairs(None), "test")
    found = batch(data)
    assert found["target"] is None
    assert found["net_input"]["src_tokens"][:, 0].tolist() == [BOS, PAD, PAD]
    assert data.sizes.tolist() == data.src_sizes.tolist() == [5, 3, 4]
    assert [data.size(i) for i in range(3)] == [(5, 0), (3, 0), (4, 0)]


def test_options_of_the_pairs_stay() -> None:
    data = StartSymbolPairDataset(pairs(left_pad_source=False, shuffle=False, pad_to_multiple=8), "test")
    assert batch(data)["net_input"]["src_tokens"].tolist()[2] == [BOS, 7, EOS, *[PAD] * 5]
    assert data.ordered_indices().tolist() == [1, 2, 0]


def test_the_given_pairs_stay_as_they_are() -> None:
    given = pairs()
    StartSymbolPairDataset(given, "test")
    assert given.sizes.tolist() == pairs().sizes.tolist()
    assert given[0]["source"].tolist() == [4, 5, 6, EOS]


def test_workers_can_take_it() -> None:
    data = StartSymbolPairDataset(pairs(), "test")
    copy = pickle.loads(pickle.dumps(data))
    assert [copy[i]["source"].tolist() for i in range(3)] == [data[i]["source"].tolist() for i in range(3)]


@pytest.mark.parametrize(("lengths", "warned"), [([253, 10], 0), ([254, 253, 300], 2)])
def test_targets_that_are_too_long_are_warned_of(
    lengths: list[int], warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    targets = [[4] * length for length in (*lengths, *[1] * (3 - len(lengths)))]
    with caplog.at_level(logging.WARNING):
        StartSymbolPairDataset(pairs(targets), "valid1")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == bool(warned)
    assert all(each.startswith(f"{warned} target(s) of valid1 are longer than 253 words") for each in messages)


def aligned(links: list[list[int]], **options: object) -> StartSymbolPairDataset:
    """Pairs with links, the source and target words of each one after the other, as fairseq keeps them."""
    rows = [torch.tensor(row, dtype=torch.int) for row in links]
    return StartSymbolPairDataset(pairs(align_dataset=ListDataset(rows, np.ones(len(rows))), **options), "train")


LINKS = [[2, 0], [], [1, 0, 0, 1]]


def test_alignments_give_fertilities() -> None:
    found = batch(aligned(LINKS))
    assert found["id"].tolist() == [0, 2, 1]
    assert found["fertilities"].tolist() == [[1, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 4, 1]]
    assert "alignments" not in found
    right = batch(aligned(LINKS, left_pad_source=False, pad_to_multiple=6))
    assert right["fertilities"].tolist()[2] == [1, 4, 1, 0, 0, 0]
    assert found["fertilities"].sum(dim=1).tolist() == [len(TARGETS[i]) + 2 for i in (0, 2, 1)]


def test_the_end_of_a_source_without_words_stands_for_the_target() -> None:
    data = aligned(LINKS)
    sample = {
        "id": 0,
        "source": torch.tensor([BOS, EOS]),
        "target": torch.tensor([14, 15, EOS]),
        "alignment": torch.tensor([]),
    }
    assert data.collater([sample])["fertilities"].tolist() == [[1, 3]]


def test_alignments_of_other_text_are_refused() -> None:
    with pytest.raises(ValueError, match="train, sentence 2: the alignment 2-0 is not one of 2 source and 2 target"):
        batch(aligned([[2, 0], [], [2, 0]]))
    with pytest.raises(ValueError, match="train has 2 alignments for 3 pairs of sentences"):
        aligned(LINKS[:2])
