"""Batches with targets in generation order, against tables written by hand."""

from __future__ import annotations

import pytest
import torch
import toy
from fairseq.data import LanguagePairDataset

from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.ops.generation_order import GenerationOrder

PAD, EOS = 1, 2


def dataset(targets: list[list[int]], order: GenerationOrder, **options: object) -> InterleavedPairDataset:
    d = toy.dictionary(20)
    rows = [torch.tensor([*words, EOS]) for words in targets]
    sources = [[*range(4, 14 - i), EOS] for i in range(len(rows))]  # in order of length: kept
    pairs = LanguagePairDataset(
        [torch.tensor(s) for s in sources], [len(s) for s in sources], d, rows, [len(r) for r in rows], d, **options
    )
    return InterleavedPairDataset(pairs, order)


def collate(data: InterleavedPairDataset) -> dict:
    return data.collater([data[i] for i in range(len(data))])


def test_two_directions() -> None:
    batch = collate(dataset([[11, 12, 13, 14, 15], [11, 12, 13, 14], [11], []], GenerationOrder(2, 1)))
    assert batch["target_interleaved"].tolist() == [
        [11, 15, 12, 14, 13, EOS],
        [11, 14, 12, 13, EOS, PAD],
        [11, EOS, PAD, PAD, PAD, PAD],
        [EOS, PAD, PAD, PAD, PAD, PAD],
    ]
    # The last step is whole: the slot behind the end symbol has its input too, the word 13 of the second sentence.
    assert batch["net_input"]["prev_output_tokens"].tolist() == [
        [EOS, EOS, 11, 15, 12, 14],
        [EOS, EOS, 11, 14, 12, 13],
        [EOS, EOS, PAD, PAD, PAD, PAD],
        [EOS, EOS, PAD, PAD, PAD, PAD],
    ]


def test_two_words_in_each_of_two_directions() -> None:
    batch = collate(dataset([[11, 12, 13, 14, 15, 16], [11, 12, 13]], GenerationOrder(2, 2)))
    assert batch["target_interleaved"].tolist() == [
        [11, 16, 12, 15, 13, 14, EOS, PAD],
        [11, 13, 12, EOS, PAD, PAD, PAD, PAD],
    ]
    assert batch["net_input"]["prev_output_tokens"].tolist() == [
        [EOS, EOS, EOS, EOS, 11, 16, 12, 15],
        [EOS, EOS, EOS, EOS, PAD, PAD, PAD, PAD],
    ]


def test_one_direction_is_the_stock_batch() -> None:
    data = dataset([[11, 12, 13], [14]], GenerationOrder(1, 1))
    batch, stock = collate(data), data.dataset.collater([data[i] for i in range(2)])
    assert torch.equal(batch["target_interleaved"], stock["target"])
    assert torch.equal(batch["net_input"]["prev_output_tokens"], stock["net_input"]["prev_output_tokens"])


def test_reading_order_and_counts_stay() -> None:
    data = dataset([[11, 12, 13, 14, 15], [11]], GenerationOrder(4, 1))
    batch, stock = collate(data), data.dataset.collater([data[i] for i in range(2)])
    assert torch.equal(batch["target"], stock["target"])
    assert batch["ntokens"] == 8
    assert batch["id"].tolist() == [0, 1]


def test_no_target_no_change() -> None:
    d = toy.dictionary(20)
    pairs = LanguagePairDataset([torch.tensor([5, EOS])], [2], d, tgt_dict=d)
    batch = collate(InterleavedPairDataset(pairs, GenerationOrder(2, 1)))
    assert "target_interleaved" not in batch


def test_target_without_end_symbol_is_refused() -> None:
    data = dataset([[11, 12]], GenerationOrder(2, 1))
    data.dataset.tgt = [torch.tensor([11, 12])]
    with pytest.raises(ValueError, match="must end in the end symbol"):
        collate(data)


def test_left_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="--left-pad-target"):
        dataset([[11]], GenerationOrder(2, 1), left_pad_target=True)
