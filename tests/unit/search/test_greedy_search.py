"""Greedy search against the most probable of all continuations of each step, by the full forward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import toy

from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

BOS, PAD, EOS, UNK = range(4)
WORDS = [BOS, EOS, UNK, *range(4, 10)]
LIMIT = 7

pytestmark = pytest.mark.usefixtures("backend")


@torch.no_grad()
def by_hand(task: Any, model: Any, source: list[int]) -> tuple[list[int], int]:
    """Words in reading order with the end symbol, and decoder calls."""
    z, net_input = task.order.words_per_step, toy.batch([source], task.src_dict)["net_input"]
    written: list[int] = []
    calls = 0
    while EOS not in written:
        calls += 1
        inputs = torch.tensor([[EOS] * z + written])
        lprobs = model.get_normalized_probs(model(**net_input, prev_output_tokens=inputs), log_probs=True)[0, -z:]
        best, score = (), -torch.inf
        for words in itertools.product(WORDS, repeat=z):
            slots = range(len(written), len(written) + z)
            end = words.index(EOS) if EOS in words else z
            # No end symbol before the first word, and only end symbols at the limit; words after the end do not count.
            wrong = (not written and end == 0) or any(slots[i] >= LIMIT for i in range(end))
            total = sum(float(lprobs[i, words[i]]) for i in range(min(end + 1, z)))
            if not wrong and total > score:
                best, score = words[: end + 1], total
        written += best
    text = torch.tensor(written[:-1])
    return [*text[task.order.recover(torch.arange(len(text)))].tolist(), EOS], calls


@pytest.mark.parametrize(("h", "c"), [(1, 1), (2, 1), (1, 3)])
def test_every_step_is_the_most_probable(h: int, c: int) -> None:
    task = toy.task(6, num_directions=h, words_per_direction=c)
    sources, calls = toy.random_sources(5, 6, seed=1), set()
    for seed in range(2):
        model = toy.model(task, seed=seed)
        options = SearchOptions(beam_size=1, max_len_b=LIMIT)
        search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
        actual = search.generate([model], toy.batch(sources, task.src_dict))
        for source, (hypothesis,) in zip(sources, actual, strict=True):
            assert (hypothesis["tokens"].tolist(), hypothesis["steps"]) == by_hand(task, model, source)
            calls.add(hypothesis["steps"])
    assert len(calls) > 1  # sentences of a batch end in different steps
