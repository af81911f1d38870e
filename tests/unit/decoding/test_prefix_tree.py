"""The tree of hypotheses' prefixes, against a case by hand and against all prefixes."""

import torch

from amlp_fairseq.attention.softmax import mask_bias
from amlp_fairseq.decoding.prefix_tree import PrefixTree

START, PAD, END = 2, 1, 2


def test_by_hand() -> None:
    """Hypotheses 7 8, 7 9 and 7 of a sentence, and 5 three times of another."""
    rows = [[7, 8, END], [7, 9, END], [7, END, PAD], *[[5, END, PAD]] * 3]
    tree = PrefixTree(torch.tensor(rows), 3, START, PAD)
    assert tree.words.tolist() == [[START, 7, 8, 9], [START, 5, PAD, PAD]]
    assert tree.nodes.tolist() == [[0, 1, 2], [0, 1, 3], [0, 1, 0], *[[0, 1, 0]] * 3]
    assert tree.lengths.tolist() == [[0, 1, 2, 2], [0, 1, 0, 0]]
    seen = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    padded = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert (~tree.hidden).int().tolist() == [seen, padded]
    bias = mask_bias(tree.hidden, torch.zeros(()))
    assert bias.eq(0).int().tolist() == [seen, padded]
    assert bias.isneginf().sum() == 2 * 16 - sum(map(sum, seen + padded))


def test_a_nodes_ancestors_spell_its_prefix() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(5, 8, (4 * 6, 9), generator=generator)
    for row, end in enumerate(torch.randint(0, 9, (len(rows),), generator=generator).tolist()):
        rows[row, end], rows[row, end + 1 :] = END, PAD
    tree = PrefixTree(rows, 6, START, PAD)
    for row, hypothesis in enumerate(rows.tolist()):
        prefix = [START]
        for position, word in enumerate(hypothesis[: hypothesis.index(END) + 1]):
            node, sentence = int(tree.nodes[row, position]), row // 6
            ancestors = (~tree.hidden[sentence, node]).nonzero().squeeze(1)
            assert tree.words[sentence, ancestors].tolist() == prefix
            assert tree.lengths[sentence, node] == position
            prefix.append(word)
    prefixes = [
        {tuple(row[:n]) for row in rows[first : first + 6].tolist() for n in range(row.index(END) + 1)}
        for first in range(0, 24, 6)
    ]
    assert tree.words.size(1) == max(map(len, prefixes))
