"""Ensembles, prefixes, alternatives, samples, and scores of texts that are given, in the engine."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import pytest
import toy
from test_engine import MODELS, SOURCES, WORDS, built, near, reference, settings

from amlp_fairseq.engine.model import Model, SearchOptions
from amlp_fairseq.engine.order import Order, Prefix
from amlp_fairseq.model_folder.config import read_config

#: All tokens but padding.
ALL = [0, *range(2, 4 + WORDS)]
SSRU = {"decoder_self_attention_type": "ssru"}
ORDERS = [(1, 1, False), (1, 3, False), (2, 1, False), (2, 2, True), (2, 0, False), (4, 1, False)]


def made(order: tuple[int, int, bool], seed: int = 1, **sizes: Any) -> tuple[Any, Any]:
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    return task, toy.model(task, seed=seed, sharpness=2.0, **sizes)


def order_of(order: tuple[int, int, bool]) -> Order:
    directions, words, middle = order
    return Order(directions, max(directions * words, 1), middle)


def chain(tokens: list[int]) -> Prefix:
    """A prefix of tokens in the order in which they are written."""
    return [{token: slot + 1} for slot, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("order", "options"),
    [
        ((1, 1, False), {}),
        ((2, 1, False), {"temperature": 1.4, "unk_penalty": 0.3}),
        ((2, 2, True), {"no_repeat_ngram": 2, "min_len": 6}),
        ((1, 1, False), {"beam": 1, "align": True}),
    ],
)
def test_an_ensemble_is_that_of_pytorch(order: tuple[int, int, bool], options: dict[str, Any], library: Any) -> None:
    """Models of other sizes, depths and attentions."""
    sizes: list[dict[str, Any]] = [
        {},
        {"decoder_layers": 1, **SSRU},
        {"encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40},
    ]
    networks = [made(order, seed, **of_model)[1] for seed, of_model in enumerate(sizes)]
    task, chosen = made(order)[0], settings(**options)
    engine = library.Engine([built(library, network) for network in networks])
    found = engine.search(SOURCES, chosen, 1)
    near(found, reference(networks, task, chosen))
    if chosen["align"]:
        expected = [[each["alignment"] for each in hypotheses] for hypotheses in reference(networks, task, chosen)]
        pairs = [[[(word, i) for i, word in enumerate(each.alignment)] for each in of_one] for of_one in found]
        assert pairs == expected


def test_what_is_no_ensemble(library: Any) -> None:
    one = built(library, made((1, 1, False))[1])
    other_order = built(library, made((2, 1, False))[1])
    other_words = built(library, toy.model(toy.task(WORDS + 1, num_directions=1)))
    for other in (other_order, other_words):
        with pytest.raises(ValueError, match="do not write alike"):
            library.Engine([one, other])
    with pytest.raises((ValueError, IndexError)):
        library.Engine([])


@pytest.mark.parametrize("order", ORDERS)
def test_a_prefix_of_what_is_written_anyway_changes_nothing(order: tuple[int, int, bool], library: Any) -> None:
    """Of a greedy search, however long the prefix is; and its words have the scores that they had."""
    engine, greedy = built(library, made(order)[1]), settings(beam=1, max_len_b=11)
    slots = library.slots
    for length in range(5):
        prefixes = []
        for (hypothesis,) in (free := engine.search(SOURCES, greedy, 1)):
            *text, _ = hypothesis.tokens
            written = dict(zip(slots(len(text), order[0], order[2]), text, strict=True))
            prefixes.append(chain([written[slot] for slot in range(min(length, len(text)))]))
        found = engine.search(SOURCES, greedy, 1, prefixes)
        assert [each.tokens for (each,) in found] == [each.tokens for (each,) in free]
        assert [each.token_scores for (each,) in found] == [each.token_scores for (each,) in free]


@pytest.mark.parametrize("order", [(1, 1, False), (1, 3, False), (2, 1, False), (2, 0, False)])
def test_words_at_the_begin_and_at_the_end(order: tuple[int, int, bool], library: Any) -> None:
    """Of all hypotheses, whatever else is asked for: given words may repeat, and come before ``min_len``."""
    engine, both = built(library, made(order)[1]), order[0] == 2
    first, last = [9, 9, 5], [8, 3] if both else []
    prefixes = [order_of(order).ends(first, last) for _ in SOURCES]
    for options in (
        {"beam": 1},
        {},
        {"no_repeat_ngram": 1},
        {"keep_all": True, "min_len": 9},
        {"count_after_end": True},
    ):
        for hypotheses in engine.search(SOURCES, settings(**options), 2, prefixes):
            assert hypotheses
            for each in hypotheses:
                *text, _ = each.tokens
                assert text[:3] == first
                assert text[len(text) - len(last) :] == last
                assert math.isfinite(each.score)


@pytest.mark.parametrize(("order", "attention"), [*((order, {}) for order in ORDERS), ((2, 2, False), SSRU)])
def test_scores_of_a_text_that_alone_is_allowed(
    order: tuple[int, int, bool], attention: dict[str, Any], library: Any
) -> None:
    """Those of the search that has found it, bit for bit; and of a text that no search would find."""
    engine, chosen = built(library, made(order, **attention)[1]), settings(max_len_b=11)
    found = engine.search(SOURCES, chosen, 1)
    for rank in range(2):
        texts = [hypotheses[rank].tokens[:-1] for hypotheses in found]
        prefixes = [order_of(order).whole(text) for text in texts]
        for (one,), hypotheses in zip(engine.search(SOURCES, chosen, 1, prefixes), found, strict=True):
            other = hypotheses[rank]
            assert (one.tokens, one.token_scores, one.score) == (other.tokens, other.token_scores, other.score)
    odd = [5, 5, 23, 7, 5, 4]
    for (one,) in engine.search(SOURCES, settings(beam=1), 1, [order_of(order).whole(odd) for _ in SOURCES]):
        assert one.tokens == [*odd, 2]


def test_the_ways_of_a_prefix(library: Any) -> None:
    """Greedy search takes the best of the words that a state allows: a brute-force search over them."""
    engine, greedy = built(library, made((1, 1, False))[1]), settings(beam=1)
    allowed = [5, 7, 12, 20]
    alone = {token: engine.search(SOURCES, greedy, 1, [chain([9, token]) for _ in SOURCES]) for token in allowed}
    ways: Prefix = [{9: 1}, dict.fromkeys(allowed, 2)]
    for index, (found,) in enumerate(engine.search(SOURCES, greedy, 1, [ways for _ in SOURCES])):
        best = max(allowed, key=lambda token, index=index: alone[token][index][0].token_scores[1])
        assert found.tokens == alone[best][index][0].tokens
    leave: Prefix = [{9: 3, 5: 1}, {6: 2}, {7: 3}]
    for hypotheses in engine.search(SOURCES, settings(beam=8), 1, [leave for _ in SOURCES]):
        begins = {tuple(each.tokens[:1]) if each.tokens[0] == 9 else tuple(each.tokens[:3]) for each in hypotheses}
        assert begins <= {(9,), (5, 6, 7)}


def test_bad_prefixes(library: Any) -> None:
    engine = built(library, made((1, 1, False))[1])
    for prefix, message in (([{5: 0}], "leads back"), ([{5: 2}], "leads back"), ([{99: 1}], "unknown token: 99")):
        with pytest.raises(ValueError, match=message):
            engine.search(SOURCES[:1], settings(), 1, [prefix])
    with pytest.raises(ValueError, match="another number"):
        engine.search(SOURCES, settings(), 1, [[]])
    several = built(library, made((2, 1, False))[1])
    with pytest.raises(ValueError, match="several ways"):
        several.search(SOURCES[:1], settings(), 1, [[{5: 1, 6: 2}, {7: 2}]])


def test_alternatives(library: Any) -> None:
    """Brute force: the words that may come next, by their probability, each with greedy search's rest."""
    engine, greedy = built(library, made((1, 1, False))[1]), settings(beam=1)
    begun = [11]
    rest = {token: engine.search(SOURCES, greedy, 1, [chain([*begun, token]) for _ in SOURCES]) for token in ALL}
    found = engine.search(SOURCES, settings(beam=5, alternatives=True), 1, [chain(begun) for _ in SOURCES])
    for index, hypotheses in enumerate(found):
        scores = {token: rest[token][index][0].token_scores[1] for token in ALL}
        best = sorted(ALL, key=lambda token, scores=scores: -scores[token])[:5]
        assert [each.tokens for each in hypotheses] == [rest[token][index][0].tokens for token in best]


def samples(engine: Any, count: int, **options: Any) -> list[Any]:
    """The first words of samples of the first source."""
    chosen = settings(sampling=True, beam=4, max_len_b=3, **options)
    found = [engine.search(SOURCES[:1], {**chosen, "seed": seed}, 1)[0] for seed in range(count // 4)]
    return [each.tokens[0] for hypotheses in found for each in hypotheses]


def test_samples_have_the_probabilities_of_the_model(library: Any) -> None:
    """Counts are binomial: within six standard deviations, which one of a billion exceeds."""
    engine, count = built(library, toy.model(toy.task(WORDS, num_directions=1), seed=2, sharpness=0.6)), 2000
    forced = [engine.search(SOURCES[:1], settings(beam=1, min_len=0), 1, [chain([token])]) for token in ALL]
    probability = {token: math.exp(found.token_scores[0]) for token, ((found,),) in zip(ALL, forced, strict=True)}
    drawn = samples(engine, count)
    words = [token for token in ALL if token != 2]  # no end before a word
    allowed = sum(probability[token] for token in words)
    for token in words:
        share = probability[token] / allowed
        assert abs(drawn.count(token) - count * share) < 6 * math.sqrt(count * share * (1 - share)) + 1
    ranked = sorted(words, key=lambda token: -probability[token])
    assert set(samples(engine, 400, sampling_topk=3)) == set(ranked[:3])
    nucleus, total = [], 0.0
    for token in ranked:
        nucleus.append(token)
        if (total := total + probability[token]) >= 0.4:  # of all words and the end
            break
    assert set(samples(engine, 800, sampling_topp=0.4)) == set(nucleus)


@pytest.mark.parametrize(("order", "attention"), [((1, 1, False), {}), ((2, 1, False), {}), ((1, 1, False), SSRU)])
def test_samples_depend_on_the_source_and_the_seed_alone(
    order: tuple[int, int, bool], attention: dict[str, Any], library: Any
) -> None:
    engine, chosen = built(library, made(order, **attention)[1]), settings(sampling=True, seed=7, temperature=1.5)
    together = engine.search(SOURCES, chosen, 2)
    alone = [engine.search([source], chosen, 1)[0] for source in SOURCES]
    assert [[each.tokens for each in one] for one in together] == [[each.tokens for each in one] for one in alone]
    assert all(len(one) == chosen["beam"] for one in together)
    others = engine.search(SOURCES, {**chosen, "seed": 8}, 1)
    assert [[each.tokens for each in one] for one in together] != [[each.tokens for each in one] for one in others]
    for hypotheses in together:
        assert [each.score for each in hypotheses] == sorted((each.score for each in hypotheses), reverse=True)


@pytest.mark.parametrize("name", ["ar", "ibdecoder", "ibdecoder_sa"])
def test_scores_of_texts(name: str) -> None:
    """What a search writes has the score that the search gives it, in one call or by steps."""
    model = Model.of_folder(MODELS / name, read_config(MODELS / name))
    options = SearchOptions(beam=4, length_penalty=0.7)
    sources = [[30 + index, 200, 77, 5, 2] for index in range(3)]
    found = model.search(sources, options)
    stepwise = copy(model)
    stepwise.takes_words_back = False
    for scorer in (model, stepwise):
        scored = scorer.score(sources, [[each.tokens for each in of_one] for of_one in found], options)
        for hypotheses, others in zip(found, scored, strict=True):
            for one, other in zip(hypotheses, others, strict=True):
                assert other.tokens == one.tokens
                assert other.score == pytest.approx(one.score, abs=len(one.tokens) * 20 * 2**-24 * 100)
