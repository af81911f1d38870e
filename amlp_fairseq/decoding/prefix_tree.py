"""Whole hypotheses of an autoregressive decoder in one call that reads each of their prefixes once. Those of a beam
have many in common. Notation: docs/glossary.md."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from amlp_fairseq.attention.softmax import mask_bias
from amlp_fairseq.attention.state import StepContext
from amlp_fairseq.decoding.step_decoder import Decoding


class PrefixTree:
    """The prefixes of the hypotheses of b sentences: a node for each, at most n of a sentence, its parent before it.

    Args:
        hypotheses: B of each sentence, with end symbols, (b·B, T).
        beam: B.
        start: the start symbol, the word of the empty prefix.
        pad: what stands behind the ends of hypotheses, and the word of nodes that are none.

    Attributes:
        nodes: those of each hypothesis, from the empty prefix to the one without its last word, (b·B, T).
        words: the last word of each node's prefix, (b, n).
        lengths: its length, (b, n).
        hidden: whether a node is neither another nor one of its ancestors, (b, n, n).
    """

    def __init__(self, hypotheses: Tensor, beam: int, start: int, pad: int) -> None:
        rows, ends = hypotheses.tolist(), hypotheses.ne(pad).sum(dim=1).tolist()
        nodes, trees = np.zeros(hypotheses.shape, np.int64), []
        for first in range(0, len(rows), beam):
            children: dict[tuple[int, int], int] = {}
            words, parents = [start], [0]
            for row in range(first, first + beam):
                node = 0
                for place, word in enumerate(rows[row][: ends[row] - 1], 1):
                    parent, node = node, children.setdefault((node, word), len(words))
                    if node == len(words):
                        words.append(word)
                        parents.append(parent)
                    nodes[row, place] = node
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
        """The logits behind each node's prefix, (b, n, V)."""
        decoder, count = self.decoder, tree.words.size(1)
        self.make_room(count, tree.nodes.size(1))
        slots = torch.arange(count, device=tree.words.device)
        context = StepContext(slots, count, bias=mask_bias(tree.hidden, decoder.table).unsqueeze(1))
        return decoder.decode(tree.words, context, self.states.each, self.memories, False, tree.lengths)[0]
