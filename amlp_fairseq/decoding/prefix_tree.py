"""Whole hypotheses of an autoregressive decoder in one call that reads each of their prefixes once. Those of a beam have
many in common. Notation: docs/glossary.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from amlp_fairseq.attention.state import StepContext
from amlp_fairseq.decoding.step_decoder import Decoding


class PrefixTree:
    """The prefixes of the hypotheses of b sentences: a node for each, at most n of a sentence, its parent before it.

    Args:
        hypotheses: of each sentence, the words of each, one or more.
        start: the start symbol, the word of the empty prefix.
        pad: the word of nodes that are none.
        device: of the tensors.

    Attributes:
        nodes: of each hypothesis the nodes of its prefixes, from the empty one to the one without its last word.
        words: the last word of each prefix, (b, n).
        lengths: its length, (b, n).
        bias: 0 for a node and its ancestors, -inf for the others, (b, 1, n, n) in float32.
    """

    def __init__(
        self, hypotheses: Sequence[Sequence[Sequence[int]]], start: int, pad: int, device: torch.device
    ) -> None:
        self.nodes: list[list[list[int]]] = []
        trees = []
        for of_sentence in hypotheses:
            children: dict[tuple[int, int], int] = {}
            words, parents, paths = [start], [0], []
            for hypothesis in of_sentence:
                path = [0]
                for word in hypothesis[:-1]:
                    node = children.setdefault((path[-1], word), len(words))
                    if node == len(words):
                        words.append(word)
                        parents.append(path[-1])
                    path.append(node)
                paths.append(path)
            self.nodes.append(paths)
            trees.append((words, parents))
        count = max(len(words) for words, _ in trees)
        all_words = np.full((len(trees), count), pad)
        sees = np.broadcast_to(np.eye(count, dtype=bool), (len(trees), count, count)).copy()
        for tree, (words, parents) in enumerate(trees):
            all_words[tree, : len(words)] = words
            for node, parent in enumerate(parents):
                sees[tree, node] |= sees[tree, parent]
        self.words = torch.from_numpy(all_words).to(device)
        allowed = torch.from_numpy(sees).to(device)
        self.lengths = allowed.sum(dim=2) - 1
        self.bias = torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, -math.inf).unsqueeze(1)


class TreeDecoding(Decoding):
    """A session of one row per sentence that reads a tree; its decoder has softmax attention only."""

    def read(self, tree: PrefixTree) -> Tensor:
        """The logits behind each node's prefix, (b, n, V)."""
        decoder, count = self.decoder, tree.words.size(1)
        while count > self.states.slots:
            self.states.grow()
        longest = max(map(len, (path for of_sentence in tree.nodes for path in of_sentence)))
        while longest > len(decoder.slots):
            decoder.make_tables(2 * len(decoder.slots))
        slots = torch.arange(count, device=tree.words.device)
        context = StepContext(slots, count, bias=tree.bias.to(decoder.table.dtype))
        return decoder.decode(tree.words, context, self.states.layers, self.memories, False, tree.lengths)[0]
