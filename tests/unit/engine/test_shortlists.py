"""Lexical shortlists in the engine, beside the search in PyTorch whose logits are masked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from types import ModuleType
from typing import Any

import pytest
import test_parallel_decoder as parallel
import torch
import toy
from test_engine import SOURCES, WORDS, built, near, reference, settings
from torch import Tensor, nn

from amlp_fairseq.engine import isa
from amlp_fairseq.engine.model import RefinementOptions
from amlp_fairseq.models.description import describe
from amlp_fairseq.search import multiword_beam_search

VOCABULARY = WORDS + 4
#: The translations of each source word; of some it has none. Padding, unknown word and end are in every list.
TRANSLATIONS = {word: [4 + word * step % WORDS for step in range(1, 1 + word % 6)] for word in range(4, VOCABULARY)}
FREQUENT = [6, 17, 11]
SYMBOLS = {1, 2, 3}
ORDERS: list[tuple[tuple[int, int, bool], dict[str, Any]]] = [
    ((1, 1, False), {}),
    ((1, 1, False), {"temperature": 1.7, "unk_penalty": 1.0, "no_repeat_ngram": 2, "min_len": 8}),
    ((1, 2, False), {"beam": 12, "min_len": 7}),  # as many hypotheses as short lists have words
    ((2, 1, False), {"max_len_b": 6}),
    ((2, 2, True), {"count_after_end": True, "keep_all": True}),
    ((4, 1, False), {"no_repeat_ngram": 1, "min_len": 4}),
]


def shortlist(library: ModuleType, vocabulary: int = VOCABULARY) -> Any:
    translations = [[each for each in TRANSLATIONS.get(word, []) if each < vocabulary] for word in range(vocabulary)]
    starts = [sum(map(len, translations[:word])) for word in range(vocabulary + 1)]
    return library.Shortlist(starts, [*chain.from_iterable(translations)], FREQUENT, vocabulary)


def listed(source: Sequence[int], vocabulary: int = VOCABULARY, symbols: set[int] = SYMBOLS) -> list[int]:
    return sorted({*FREQUENT, *symbols, *(word for each in source for word in TRANSLATIONS.get(each, []))})


def alone(monkeypatch: pytest.MonkeyPatch, search: Callable[[], list[list[dict[str, Any]]]]) -> list[Any]:
    """What the search in PyTorch finds for each source, with the logits of other words than its list's at -inf."""
    results = []
    for index, source in enumerate(SOURCES):
        words = listed(source)

        def masked(logits: Tensor, words: list[int] = words) -> Tensor:
            mask = torch.full_like(logits, -math.inf)
            mask[..., words] = 0
            return torch.log_softmax((logits + mask).double(), dim=-1).float()

        monkeypatch.setattr(multiword_beam_search, "log_probabilities", masked)
        results.append(search()[index])
    monkeypatch.undo()
    return results


@pytest.mark.parametrize(("order", "options"), ORDERS)
def test_the_search_is_over_the_list(
    order: tuple[int, int, bool], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words, scores renormalised over the list, and the number of steps are those of a search with masked logits."""
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    network, chosen = toy.model(task, seed=1, sharpness=1.5), settings(**options)
    library = isa.library()
    engine = built(library, network)
    found = engine.search(SOURCES, chosen, 2, [], None, shortlist(library))
    near(found, alone(monkeypatch, lambda: reference(network, task, chosen)))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert all({*each.tokens} <= {*listed(source)} for each in hypotheses)
    free = engine.search(SOURCES, chosen, 2)
    assert [each[0].tokens for each in free] != [each[0].tokens for each in found]


def test_an_ensemble_has_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of probabilities that each model has renormalised."""
    task = toy.task(WORDS, num_directions=2)
    networks, library = [toy.model(task, seed=seed, sharpness=1.5) for seed in (1, 2)], isa.library()
    engine = library.Engine([built(library, network) for network in networks])
    found = engine.search(SOURCES, settings(), 1, [], None, shortlist(library))
    near(found, alone(monkeypatch, lambda: reference(networks, task, settings())))


def everything(found: list[list[Any]]) -> list[Any]:
    return [[(each.tokens, each.token_scores, each.score, each.steps) for each in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("int8", [False, True])
def test_the_logits_are_those_of_the_whole_vocabulary(library: ModuleType, int8: bool) -> None:
    """Bit for bit: with all words in the lists nothing changes. Nor does it with the batch, or with threads."""
    task = toy.task(WORDS, num_directions=2)
    engine = built(library, toy.model(task, seed=3, sharpness=2.0), int8)
    all_words = library.Shortlist([0] * (VOCABULARY + 1), [], range(VOCABULARY), VOCABULARY)
    expected = everything(engine.search(SOURCES, settings(), 1))
    assert everything(engine.search(SOURCES, settings(), 2, [], None, all_words)) == expected

    some = shortlist(library)
    single = [everything(engine.search([source], settings(), 1, [], None, some))[0] for source in SOURCES]
    for threads in (1, 2, 3):
        assert everything(engine.search(SOURCES * 3, settings(), threads, [], None, some)) == single * 3
    assert single != expected


def test_a_prefix_is_written_whatever_the_list_has() -> None:
    """Of a state with several words those of the list; all, if it has none of them."""
    library = isa.library()
    engine = built(library, toy.model(toy.task(WORDS, num_directions=1), seed=2, sharpness=1.5))
    source = [8, 8, 2]
    words = listed(source)
    outside = [word for word in range(4, VOCABULARY) if word not in words]
    begin = [{outside[0]: 1}, {outside[1]: 2, words[-1]: 2}, {outside[2]: 3, outside[3]: 3}]
    for one in engine.search([source], settings(beam=8), 1, [begin], None, shortlist(library))[0]:
        assert one.tokens[:2] == [outside[0], words[-1]]
        assert one.tokens[2] in outside[2:4]
        assert {*one.tokens[3:]} <= {*words, outside[0], *outside[2:4]}  # what is given is in the list
    ways = engine.search([source], settings(beam=8), 1, [[*begin, {2: 4}]], None, shortlist(library))[0]
    assert sorted(one.tokens for one in ways) == [[outside[0], words[-1], way, 2] for way in outside[2:4]]


def test_drafts_samples_and_alternatives_are_of_the_list() -> None:
    library = isa.library()
    engine = built(library, toy.model(toy.task(WORDS, num_directions=1), seed=4, sharpness=1.0))
    some, greedy = shortlist(library), settings(beam=1, no_repeat_ngram=2, min_len=9)
    expected = engine.search(SOURCES, greedy, 1, [], None, some)

    def propose(number: int, words: list[int], count: int) -> list[int]:
        right = [*expected[number][0].tokens, 5, 5][len(words) :]
        return [*right[: count // 2], 5][:count]  # 5 is in no list

    drafted = engine.search_drafted(SOURCES, greedy, propose, 6, 1, some)
    texts = [[(each.tokens, each.token_scores) for each in hypotheses] for hypotheses in (expected + drafted)]
    assert texts[: len(SOURCES)] == texts[len(SOURCES) :]
    assert sum(each[0].steps for each in drafted) < sum(each[0].steps for each in expected)
    for options in (
        {"sampling": True, "sampling_topk": 30},
        {"sampling": True, "sampling_topp": 0.9},
        {"alternatives": True},
    ):
        for source, hypotheses in zip(
            SOURCES, engine.search(SOURCES, settings(**options), 1, [], None, some), strict=True
        ):
            assert hypotheses
            assert all({*each.tokens} <= {*listed(source)} for each in hypotheses)


@pytest.mark.parametrize("options", [RefinementOptions(6, 3), RefinementOptions(0)])
def test_models_that_write_all_words_at_a_time(options: RefinementOptions, library: ModuleType) -> None:
    """As in PyTorch with a bias of -10⁹ for other words."""
    vocabulary = parallel.WORDS + 4
    network = parallel.model(no_repos=True)
    engine, some = parallel.built(library, network), shortlist(library, vocabulary)
    found = engine.refine(parallel.SOURCES, vars(options), 2, None, some)
    assert everything([found]) != everything([engine.refine(parallel.SOURCES, vars(options), 1)])
    single = [engine.refine([source], vars(options), 1, None, some)[0] for source in parallel.SOURCES]
    assert everything([found]) == everything([single])
    weight = network.decoder.output_projection.weight
    for index, source in enumerate(parallel.SOURCES):
        words = [word for word in listed(source, vocabulary, {0, *SYMBOLS}) if word < vocabulary]
        network.decoder.output_projection = nn.Linear(weight.size(1), vocabulary)
        network.decoder.output_projection.weight = weight
        with torch.no_grad():
            network.decoder.output_projection.bias.fill_(-1e9)[words] = 0
        expected = parallel.reference(network, options)[index]
        assert found[index].tokens == expected["tokens"].tolist()
        assert found[index].steps == expected["steps"]
        torch.testing.assert_close(
            torch.tensor(found[index].token_scores), expected["positional_scores"], atol=20 * 2**-24 * 100, rtol=0
        )


def test_a_vocabulary_in_parts(library: ModuleType) -> None:
    """The engine computes 1024 words at a time; with all words in the lists nothing changes but the order of sums."""
    network = toy.cmlmc(1, 2100, no_repos=True)
    engine, vocabulary, options = parallel.built(library, network, True), 2104, vars(RefinementOptions(3, words=9))
    all_words = library.Shortlist([0] * (vocabulary + 1), [], range(vocabulary), vocabulary)
    found, expected = (engine.refine(parallel.SOURCES, options, 1, None, words) for words in (all_words, None))
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert max(max(each.tokens) for each in found) >= 1024
    for one, other in zip(found, expected, strict=True):
        assert one.token_scores == pytest.approx(other.token_scores, abs=2104 * 2**-24)


def test_wrong_shortlists() -> None:
    library = isa.library()
    for starts, words, always in (
        ([0, 1], [], []),
        ([1, 1], [4], []),
        ([0, 2, 1], [4], []),
        ([], [], []),
        ([0], [], [9]),
    ):
        with pytest.raises(ValueError, match="shortlist"):
            library.Shortlist(starts, words, always, 8)
    network = toy.model(toy.task(WORDS, num_directions=1))
    assert describe(network)["decoder"]["vocabulary"] == VOCABULARY
    with pytest.raises(ValueError, match="other vocabularies"):
        built(library, network).search(SOURCES, settings(), 1, [], None, shortlist(library, VOCABULARY + 1))
