"""The search against brute force: all outputs, scored by the model, without those that break a rule.

The beam keeps everything, so the search must find all outputs that the rules allow, with their scores. The tests do not
call the code of the rules.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tolerance
import torch
import toy

from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

#: h, c, and whether from the middle to the sides.
ORDERS = [
    *[(h, c, False) for h, c in [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (4, 1)]],
    *[(h, c, True) for h, c in [(2, 1), (4, 1)]],
]
BOS, PAD, EOS, UNK = range(4)
#: 2 and 4 tokens with the end symbol, so that ``max_len_a`` gives different limits.
SOURCES = [[UNK], [UNK, BOS, UNK]]

pytestmark = pytest.mark.usefixtures("backend")


def all_outputs(words: list[int], longest: int) -> list[tuple[int, ...]]:
    return [output for n in range(longest + 1) for output in itertools.product(words, repeat=n)]


@torch.no_grad()
def scores_of(model: Any, order: GenerationOrder, source: list[int], texts: list[tuple[int, ...]]) -> torch.Tensor:
    """Sums of the log-probabilities of words and end symbol, as the model gives them to whole outputs of one length."""
    z, n = order.words_per_step, len(texts[0])
    generated = torch.tensor(texts, dtype=torch.long).view(len(texts), n)[:, order.permutation(n)]
    starts, ends = torch.full((len(texts), z), EOS), torch.full((len(texts), 1), EOS)
    inputs = torch.cat([starts, generated], dim=1)[:, : order.padded_length(n + 1)]
    net_input = toy.batch([source] * len(texts), model.decoder.dictionary)["net_input"]
    lprobs = model.get_normalized_probs(model(**net_input, prev_output_tokens=inputs), log_probs=True)
    expected = torch.cat([generated, ends], dim=1)
    return lprobs[:, : n + 1].gather(2, expected.unsqueeze(2)).sum(dim=(1, 2))


def repeats(runs: list[tuple[int, ...]], size: int) -> bool:
    """True if an n-gram occurs twice in runs of words, in one run or in two."""
    ngrams = [run[i : i + size] for run in runs for i in range(len(run) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


def runs_of(order: GenerationOrder, text: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The words of each direction, in text order."""
    h, positions = order.num_directions, order.permutation(len(text)).tolist()
    return [tuple(text[position] for position in sorted(positions[d::h])) for d in range(h)]


def allowed(order: GenerationOrder, text: tuple[int, ...], longest: int, ngram: int) -> bool:
    """True without a repeated n-gram; at the length limit, one where two directions meet is allowed."""
    return ngram == 0 or not repeats(runs_of(order, text) if len(text) == longest else [text], ngram)


#: Options; by default the words are <s>, <unk> and one more, and outputs have at most 5.
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "least": {"min_len": 3},
    "least 0": {"min_len": 0},
    "most": {"max_len_a": 1.0, "max_len_b": 0},
    "least and most": {"min_len": 2, "max_len_a": 0.5, "max_len_b": 2},
    "unknown": {"unk_penalty": 1.5},
    "1-grams": {"no_repeat_ngram_size": 1, "max_len_b": 4},
    "2-grams": {"no_repeat_ngram_size": 2, "words": 0, "max_len_b": 6},
    "3-grams": {"no_repeat_ngram_size": 3, "words": 0, "max_len_b": 6},
    "all": {
        "no_repeat_ngram_size": 2,
        "words": 0,
        "min_len": 2,
        "max_len_a": 0.5,
        "max_len_b": 3,
        "unk_penalty": -0.7,
    },
}


#: Every rule with half of the orders, in the engine or PyTorch: with each order, that is, every second rule.
CASES = [
    (("engine", "PyTorch")[(position + number) // 2 % 2], *order, name)
    for position, order in enumerate(ORDERS)
    for number, name in enumerate(RULES)
    if (position + number) % 2 == 0
]


@pytest.mark.parametrize(("backend", "h", "c", "middle_to_side", "name"), CASES, indirect=["backend"])
def test_all_outputs_that_the_rules_allow_are_found(h: int, c: int, middle_to_side: bool, name: str) -> None:
    rules = {"max_len_b": 5, **RULES[name]}
    extra = rules.pop("words", 1)
    task = toy.task(extra, num_directions=h, words_per_direction=c, middle_to_side=middle_to_side)
    model = toy.model(task, seed=h + c)
    words = [BOS, UNK, 4][: 2 + extra]
    limits = [int(rules.get("max_len_a", 0) * (len(source) + 1) + rules["max_len_b"]) for source in SOURCES]
    options = SearchOptions(beam_size=len(all_outputs(words, max(limits))), **rules)
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
    actual = search.generate([model], toy.batch(SOURCES, task.src_dict))
    for source, longest, hypotheses in zip(SOURCES, limits, actual, strict=True):
        expected = {}
        for n in range(rules.get("min_len", 1), longest + 1):
            texts = list(itertools.product(words, repeat=n))
            scores = scores_of(model, task.order, source, texts).tolist()
            for text, score in zip(texts, scores, strict=True):
                if allowed(task.order, text, longest, rules.get("no_repeat_ngram_size", 0)):
                    expected[text] = (score - rules.get("unk_penalty", 0) * text.count(UNK)) / (n + 1)
        scores = {tuple(each["tokens"][:-1].tolist()): float(each["score"]) for each in hypotheses}
        assert len(scores) == len(hypotheses)
        assert scores == pytest.approx(expected, abs=tolerance.of_scores(6))
        assert float(hypotheses[0]["score"]) == pytest.approx(max(expected.values()), abs=tolerance.of_scores(6))
