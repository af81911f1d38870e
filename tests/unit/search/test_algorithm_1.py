"""``--finished all`` against Algorithm 1 of Zhang et al. (2020), line by line, on probabilities of whole prefixes."""

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

PAD, EOS = 1, 2
#: T. A search that comes so far is not compared: ours writes the end symbol there.
LONGEST = 24

Hypotheses = list[tuple[tuple[int, ...], float]]

pytestmark = pytest.mark.usefixtures("backend")


@torch.no_grad()
def decode(model: Any, z: int, source: list[int], words: tuple[int, ...]) -> list[dict[int, float]]:
    """Log-probabilities of the next z words, by prefix."""
    net_input = toy.batch([source], model.decoder.dictionary)["net_input"]
    inputs = torch.tensor([[EOS] * z + list(words)])
    lprobs = model.get_normalized_probs(model(**net_input, prev_output_tokens=inputs), log_probs=True)[0, -z:]
    return [{word: float(p) for word, p in enumerate(slot) if word != PAD} for slot in lprobs]


def algorithm_1(model: Any, order: GenerationOrder, source: list[int], beam: int) -> Hypotheses | None:
    """Finished hypotheses in the order of generation with s/t, best first; None where T words are written.

    The numbers are the paper's lines.
    """
    z = order.words_per_step
    hypotheses: Hypotheses = [((), 0.0)]  # 4
    finished, t = [], 0  # 5, 6
    while len(finished) < beam and t < LONGEST:  # 7
        update = []
        for words, score in hypotheses:  # 8
            slots = [
                sorted(slot.items(), key=lambda entry: -entry[1])[:beam] for slot in decode(model, z, source, words)
            ]  # 10
            continuations = [
                (tuple(word for word, _ in continuation), sum(lprob for _, lprob in continuation))
                for continuation in itertools.product(*slots)
            ]
            for new, added in sorted(continuations, key=lambda continuation: -continuation[1])[:beam]:  # 12-15
                hypothesis = (words + new, score + added)
                (finished if EOS in new else update).append(hypothesis)  # 17-20
        hypotheses = sorted(update, key=lambda each: -each[1])[:beam]  # 24
        t += z  # 25
    if t >= LONGEST:
        return None
    ranked = [(words, score / len(words)) for words, score in finished]  # 28
    return sorted(ranked, key=lambda each: -each[1])[:beam]  # 2


def found(search: MultiwordBeamSearch, model: Any, sources: list[list[int]]) -> list[Hypotheses]:
    """The words of each hypothesis in reading order, with its score."""
    batch = toy.batch(sources, model.decoder.dictionary)
    return [
        [(tuple(each["tokens"][:-1].tolist()), float(each["score"])) for each in hypotheses]
        for hypotheses in search.generate([model], batch)
    ]


@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize(("h", "c"), [(1, 1), (2, 1), (2, 2), (1, 3), (4, 1)])
def test_all_hypotheses_that_end_are_kept(h: int, c: int, beam: int) -> None:
    """Hypotheses and scores are equal with ``--finished all``, and not always by default."""
    task, compared, differing = toy.task(9, num_directions=h, words_per_direction=c), 0, 0
    sources = toy.random_sources(4, 9, seed=beam)
    options = {"beam_size": beam, "max_len_b": LONGEST, "min_len": 0, "words_after_end": "count"}
    for seed in range(2):
        model = toy.model(task, seed)
        literal, default = (
            found(
                MultiwordBeamSearch([model], task.tgt_dict, task.order, SearchOptions(**options, **more)),
                model,
                sources,
            )
            for more in ({"finished": "all"}, {})
        )
        for source, ours, fairseqs in zip(sources, literal, default, strict=True):
            if (expected := algorithm_1(model, task.order, source, beam)) is None:
                continue
            texts = [words[: words.index(EOS)] for words, _ in expected]
            texts = [tuple(task.order.recover(torch.tensor(words, dtype=torch.long)).tolist()) for words in texts]
            assert [words for words, _ in ours] == texts
            assert [score for _, score in ours] == pytest.approx(
                [score for _, score in expected], abs=tolerance.of_scores()
            )
            compared, differing = compared + 1, differing + (ours != fairseqs)
    assert compared > 2
    assert differing
