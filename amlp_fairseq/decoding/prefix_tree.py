"""Reads whole hypotheses with an autoregressive decoder in one call, each shared prefix once: hypotheses of a beam
share many. Notation: docs/glossary.md."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from amlp_fairseq.attention.softmax import mask_bias
from amlp_fairseq.attention.state import StepContext
from amlp_fairseq.decoding.step_decoder import Decoding


class PrefixTree:
    """The prefixes of the hypotheses of b sentences, one node each, at most n per sentence, parents before children.

    Args:
        hypotheses: B of each sentence, with end symbols, (b·B, T).
        beam: B.
        start: the start symbol, the word of the empty prefix.
        pad: fills hypotheses after their ends, and the nodes of smaller trees.

    Attributes:
        nodes: the nodes of each hypothesis, from the empty prefix to the prefix without the last word, (b·B, T).
        words: the last word of each node's prefix, (b, n).
        lengths: the length of each node's prefix, (b, n).
        hidden: True at (i, j) unless node j is node i or an ancestor, (b, n, n).
    """

    def __init__(self, hypotheses: Tensor, beam: int, start: int, pad: int) -> None:
        rows, ends = hypotheses.tolist(), hypotheses.ne(pad).sum(dim=1).tolist()
        nodes, trees = np.zeros(hypotheses.shape, np.int64), []
        for first in range(0, len(rows), beam):
            children: dict[tuple[int, int], int] = {}
            words, parents = [start], [0]
            for row in range(first, first + beam):
                node = 0
                for position, word in enumerate(rows[row][: ends[row] - 1], 1):
                    parent, node = node, children.setdefault((node, word), len(words))
                    if node == len(words):
                        words.append(word)
                        parents.append(parent)
                    nodes[row, position] = node
            trees.append((words, parents))
        count = max(len(words) for words, _ in trees)
        all_words = np.full((len(trees), count), pad)
        sees = np.broadcast_to(np.eye(count, dtype=bool), (len(trees), count, count)).copy()
        for tree, (words, parents) in enumerate(trees):
            all_words[tree, : len(words)] = words
            for node, parent in enumerate(parents):
                sees[tree, node] |= sees[tree, parent]
        self.nodes, self.words, seen = (torch.from_numpy(x).to(hypotheses.device) for x in (nodes, all_words, sees))
        self.lengths = seen.sum(dim=2) - 1
        self.hidden = ~seen


class TreeDecoding(Decoding):
    """A session of one row per sentence that reads a tree; its decoder has softmax attention only."""

    def read(self, tree: PrefixTree) -> Tensor:
        """The logits of the word after each node's prefix, (b, n, V)."""
        decoder, count = self.decoder, tree.words.size(1)
        self.make_room(count, tree.nodes.size(1))
        slots = torch.arange(count, device=tree.words.device)
        context = StepContext(slots, count, bias=mask_bias(tree.hidden, decoder.table).unsqueeze(1))
        return decoder.decode(tree.words, context, self.states.by_attention, self.memories, False, tree.lengths)[0]
