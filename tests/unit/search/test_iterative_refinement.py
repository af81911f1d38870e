"""Iterative refinement against scripted models, against mask-predict one sentence at a time, and fairseq's scorer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import tolerance
import torch
import toy
from fairseq.iterative_refinement_generator import DecoderOut
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask

WORDS = 12
BOS, PAD, EOS, UNK = range(4)
WRITTEN = range(UNK, UNK + 1 + WORDS)  # what a model may write
DICTIONARY = toy.dictionary(WORDS)
TASK = TranslationCMLMCTask(TranslationCMLMCConfig(), DICTIONARY, DICTIONARY)


def generator(**options: Any) -> IterativeRefinement:
    return IterativeRefinement(DICTIONARY, use_engine=False, **options)


def batch(sources: list[list[int]], left_pad: bool = True) -> dict[str, Any]:
    """A batch of sources with start and end symbols, as from the task."""
    return toy.batch([[BOS, *words] for words in sources], DICTIONARY, left_pad)


#: Outputs of a candidate, by iteration: words and their log-probabilities.
Script = list[tuple[list[int], list[float]]]


class Scripted:
    """A model with fairseq's methods and scripted outputs.

    Args:
        scripts: for every sentence its candidates by their number of words.
        in_place: write into the tensors of the state, as fairseq's own models do.
    """

    allow_length_beam = True
    _is_generation_fast = True
    _modules: ClassVar[dict[str, Any]] = {}
    decoder = SimpleNamespace(layers=[])
    EDGE = -100.0  # the score of start and end, which is to count nowhere

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        yield torch.nn.Parameter(torch.zeros(1))

    def __init__(self, scripts: list[dict[int, Script]], in_place: bool = False) -> None:
        self.scripts, self.in_place = scripts, in_place
        self.calls: list[tuple[int, int, list[int]]] = []
        self.encoder = self

    def eval(self) -> Scripted:
        return self

    def forward_encoder(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        return {"sentence": inputs[0][:, -2] - 4}

    def reorder_encoder_out(self, encoder_out: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
        return {"sentence": encoder_out["sentence"][order]}

    def initialize_output_tokens(self, encoder_out: dict[str, Tensor], src_tokens: Tensor) -> DecoderOut:
        lengths = [next(iter(self.scripts[i])) for i in encoder_out["sentence"].tolist()]
        return self._masked(lengths, DecoderOut(None, None, None, 0, 0, None))

    def regenerate_length_beam(self, state: DecoderOut, beam_size: int) -> DecoderOut:
        lengths = [n for script in self.scripts for n in script]
        assert len(lengths) == beam_size * len(state.output_tokens)
        return self._masked(lengths, state)

    def _masked(self, lengths: list[int], state: DecoderOut) -> DecoderOut:
        width = max(lengths) + 2
        rows = [[BOS, *[UNK] * n, EOS, *[PAD] * (width - n - 2)] for n in lengths]
        return state._replace(output_tokens=torch.tensor(rows), output_scores=torch.zeros(len(rows), width))

    def forward_decoder(self, state: DecoderOut, encoder_out: dict[str, Tensor], **_: Any) -> DecoderOut:
        sentences = encoder_out["sentence"].tolist()
        self.calls.append((state.step, state.max_step, sentences))
        tokens, scores = state.output_tokens, state.output_scores
        if not self.in_place:
            tokens, scores = tokens.clone(), scores.clone()
        for row, sentence in enumerate(sentences):
            n = int(tokens[row].ne(PAD).sum()) - 2
            words, log_probs = self.scripts[sentence][n][state.step]
            tokens[row, 1 : n + 1], scores[row, 1 : n + 1] = torch.tensor(words), torch.tensor(log_probs)
            scores[row, 0] = scores[row, n + 1] = self.EDGE
        if state.history is not None:
            state.history.append(tokens.clone())
        return state._replace(output_tokens=tokens, output_scores=scores)

    def translate(self, **options: Any) -> list[dict[str, Any]]:
        """The hypotheses; sentence i's source is word i."""
        actual = generator(**options).generate([self], batch([[4 + i] for i in range(len(self.scripts))]))
        assert all(len(hypotheses) == 1 for hypotheses in actual)
        return [hypotheses[0] for hypotheses in actual]

    @property
    def alive(self) -> list[list[int]]:
        """The sentences of each call."""
        return [sentences for _, _, sentences in self.calls]


def says(*iterations: str, score: float = -1.0) -> Script:
    """A script of words from a to l, all with one score, which falls by an eighth whenever they change."""
    changes = [0]
    for before, words in pairwise(iterations):
        changes.append(changes[-1] + (words != before))
    return [
        ([ord(c) - ord("a") + 4 for c in words], [score - count / 8] * len(words))
        for words, count in zip(iterations, changes, strict=True)
    ]


def text(tokens: Tensor) -> str:
    symbols = {BOS: "^", PAD: "_", EOS: "$", UNK: "?"}
    return "".join(symbols.get(token) or chr(token - 4 + ord("a")) for token in tokens.tolist())


CHANGES = [
    {2: says("ab", "ac", "ac", "ad", "ae")},  # stays as it is once, in the third call
    {3: says("def", "def", "ddd", "eee", "fff")},  # in the second
    {1: says("g", "h", "g", "h", "g")},  # never
    {0: says("", "", "", "", "")},  # in the first: it has no word
    {4: says("iiii", "jiii", "jjii", "jjji", "jjji")},  # in the last
]


def test_a_sentence_is_finished_when_an_iteration_changes_nothing() -> None:
    model = Scripted(CHANGES)
    actual = model.translate(max_iter=4)
    assert [text(h["tokens"]) for h in actual] == ["ac$", "def$", "g$", "$", "jjji$"]
    assert [h["steps"] for h in actual] == [3, 2, 5, 1, 5]
    assert model.alive == [[0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 2, 4], [2, 4], [2, 4]]
    assert [call[:2] for call in model.calls] == [(step, 5) for step in range(5)]
    assert [float(h["score"]) for h in actual] == [-1.125, -1.0, -1.5, 0.0, -1.375]


def test_a_model_can_say_which_sentences_are_finished() -> None:
    """Each sentence is unchanged by one iteration, and changed by a later one."""
    model = Scripted([{1: says("a", "a", "a", "b")}, {1: says("c", "c", "c", "d")}])
    asked = []

    def converged(before: DecoderOut, after: DecoderOut) -> Tensor:
        asked.append((before.output_tokens[:, 1].tolist(), after.output_tokens[:, 1].tolist(), after.step))
        return after.output_tokens[:, 1].eq(4) & (after.step == 1)

    model.converged = converged  # type: ignore[attr-defined]
    assert [(text(h["tokens"]), h["steps"]) for h in model.translate(max_iter=3)] == [("a$", 2), ("d$", 4)]
    assert asked == [([UNK, UNK], [4, 6], 0), ([4, 6], [4, 6], 1), ([6], [6], 2)]


def test_no_more_calls_than_sentences_need() -> None:
    model = Scripted([CHANGES[1], CHANGES[0]])
    assert [h["steps"] for h in model.translate(max_iter=4)] == [2, 3]
    assert len(model.calls) == 3


@pytest.mark.parametrize("max_iter", [0, 1, 4])
def test_all_iterations_can_be_forced(max_iter: int) -> None:
    model = Scripted(CHANGES)
    actual = model.translate(max_iter=max_iter, adaptive=False)
    assert model.alive == [[0, 1, 2, 3, 4]] * (max_iter + 1)
    assert [call[:2] for call in model.calls] == [(step, max_iter + 1) for step in range(max_iter + 1)]
    assert [h["steps"] for h in actual] == [max_iter + 1] * 5
    for hypothesis, script in zip(actual, CHANGES, strict=True):
        ((words, _),) = [iterations[max_iter] for iterations in script.values()]
        assert hypothesis["tokens"].tolist() == [*words, EOS]


@pytest.mark.parametrize("adaptive", [True, False])
def test_candidates_are_compared_by_the_mean_score_of_their_words(adaptive: bool) -> None:
    model = Scripted(
        [
            {1: says("a", "a", score=-2.0), 2: says("bc", "bc", score=-1.0), 3: says("def", "def", score=-1.5)},
            {1: says("g", "h", score=-0.5), 2: says("gg", "gg", score=-1.0), 3: says("ghi", "hhi", score=-0.6)},
            # One bad word among good ones; the sum would choose the shortest.
            {1: says("a", "a", score=-1.5), 3: [([4, 5, 6], [-0.1, -3.0, -0.1])] * 2, 2: says("bb", "bb", score=-1.4)},
        ]
    )
    actual = model.translate(max_iter=1, beam_size=3, adaptive=adaptive)
    assert [text(h["tokens"]) for h in actual] == ["bc$", "h$", "abc$"]
    assert [float(h["score"]) for h in actual] == pytest.approx([-1.0, -0.625, -3.2 / 3])


def test_candidates_leave_the_batch_one_by_one() -> None:
    model = Scripted(
        [
            {1: says("a", "b", "c"), 2: says("dd", "dd", "aa", score=-2.0)},
            {3: says("eee", "fee", "fee", score=-0.1), 4: says("gggg", "gggg", "aaaa", score=-1.0)},
        ]
    )
    actual = model.translate(max_iter=2, beam_size=2)
    assert model.alive == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 1]]
    assert [text(h["tokens"]) for h in actual] == ["c$", "fee$"]
    assert [h["steps"] for h in actual] == [3, 3]


def test_nothing_is_chosen_only_where_there_is_nothing_else() -> None:
    model = Scripted(
        [
            {0: says(""), 1: says("a", score=-9.0), 2: says("bb", score=-8.0)},
            {0: says(""), 1: says("c", score=-9.0), 2: says("dd", score=-10.0)},
        ]
    )
    assert [text(h["tokens"]) for h in model.translate(max_iter=0, beam_size=3)] == ["bb$", "c$"]
    (actual,) = Scripted([{0: says("")}]).translate(max_iter=0)
    assert text(actual["tokens"]) == "$"
    assert float(actual["score"]) == 0


def test_a_candidate_that_only_wrote_end_symbols_is_nothing() -> None:
    """fairseq's nonautoregressive_transformer may write the end symbol anywhere."""
    model = Scripted([{1: [([EOS], [-0.1])], 2: says("ab", score=-2.0)}])
    assert [text(h["tokens"]) for h in model.translate(max_iter=0, beam_size=2)] == ["ab$"]


def test_special_symbols_among_the_words_are_dropped() -> None:
    """Hypotheses have words and one end symbol, with a score for each."""
    written = ([4, EOS, 5, BOS, 6, PAD], [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6])
    (actual,) = Scripted([{6: [written]}]).translate(max_iter=0)
    assert text(actual["tokens"]) == "abc$"
    assert actual["positional_scores"].tolist() == pytest.approx([-0.1, -0.3, -0.5, Scripted.EDGE])
    assert float(actual["score"]) == pytest.approx(-0.3)


def test_scores_stand_beside_their_tokens() -> None:
    script = {4: [([4, 5, 6, 7], [-0.5, -1.0, -1.5, -2.0])], 2: [([8, 9], [-3.0, -4.0])]}
    (actual,) = Scripted([script]).translate(max_iter=0, beam_size=2)
    assert text(actual["tokens"]) == "abcd$"
    assert actual["positional_scores"].tolist() == [-0.5, -1.0, -1.5, -2.0, Scripted.EDGE]
    assert float(actual["score"]) == -1.25
    assert actual["alignment"] == []
    assert "history" not in actual


@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
def test_history_holds_what_is_read_and_written(in_place: bool) -> None:
    actual = Scripted(CHANGES, in_place).translate(max_iter=4, retain_history=True)
    assert [[text(entry["tokens"]) for entry in h["history"]] for h in actual] == [
        ["??$", "ab$", "ac$", "ac$"],
        ["???$", "def$", "def$"],
        ["?$", "g$", "h$", "g$", "h$", "g$"],
        ["$", "$"],
        ["????$", "iiii$", "jiii$", "jjii$", "jjji$", "jjji$"],
    ]


@pytest.mark.parametrize("adaptive", [True, False])
def test_models_may_write_in_place(adaptive: bool) -> None:
    options = {"max_iter": 4, "adaptive": adaptive}
    copied, in_place = (Scripted(CHANGES, in_place).translate(**options) for in_place in (False, True))
    assert [(text(h["tokens"]), h["steps"], float(h["score"])) for h in copied] == [
        (text(h["tokens"]), h["steps"], float(h["score"])) for h in in_place
    ]


SOURCES = toy.random_sources(7, WORDS, seed=5)


def model(seed: int = 3, **options: Any) -> Any:
    """A random cmlmc_transformer whose lengths and words differ from sentence to sentence, and words within one."""
    torch.manual_seed(seed)
    values = {**toy.SIZES, "max_source_positions": 64, "max_target_positions": 64, "label_smoothing": 0.1, **options}
    args = Namespace(_name="cmlmc_transformer", **values)
    ARCH_CONFIG_REGISTRY["cmlmc_transformer_tiny"](args)
    result = TASK.build_model(args).eval()
    with torch.no_grad():
        for name, weight in result.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=1.0 if "embed" in name else weight.size(1) ** -0.5)
        encoded = [encode(result, source) for source in SOURCES]
        masks = torch.tensor([[BOS, *[UNK] * 6, EOS]])
        lengths, words = result.decoder.embed_length.weight, result.decoder.output_projection.weight
        for weight, features in (
            (lengths, [states["encoder_out"][0].transpose(0, 1) for states in encoded]),
            (words, [result.decoder.extract_features(masks, states)[0] for states in encoded]),
        ):  # makes both blind to what all sentences have in common
            common = torch.nn.functional.normalize(torch.cat([x[0] for x in features]).mean(dim=0), dim=0)
            weight -= torch.outer(weight @ common, common)
        zero = 128 - 5 if options.get("pred_length_offset") else 2
        lengths[: zero + 1] = lengths[zero + 10 :] = 0  # from 1 to 9 words
    return result


def encode(network: Any, source: list[int]) -> dict[str, Any]:
    tokens = torch.tensor([[BOS, *source, EOS]])
    return network.encoder(tokens, src_lengths=torch.tensor([tokens.size(1)]))


def with_length(network: Any, length: int) -> Any:
    """A model that predicts ``length`` words for every sentence."""
    network.decoder.forward_length_prediction = lambda length_out, encoder_out: torch.full(
        (len(length_out),), length + 2
    )
    return network


@torch.no_grad()
def predicted_length(models: list[Any], source: list[int], offset: bool = False) -> int:
    """Words of the likeliest length."""
    probabilities = 0
    for network in models:
        states = encode(network, source)["encoder_out"][0].mean(dim=0)
        probabilities = probabilities + (states @ network.decoder.embed_length.weight.T).softmax(-1)
    best = int(probabilities.argmax())
    return max(best - 128 + len(source) if offset else best - 2, 0)


@torch.no_grad()
def mask_predict(
    models: list[Any], source: list[int], n: int, iterations: int, correct: bool = True
) -> list[tuple[list[int], list[int], list[float]]]:
    """The papers' mask-predict for one sentence of n words: inputs and outputs of every iteration, and
    the log-probabilities of that.

    Iteration t of T, from 0, masks the ⌊n (T - t) / T⌋ words with the lowest scores. CMLMC takes what the model then
    says of every word, CMLM (``correct=False``) of the masked ones.
    """
    encoded = [encode(network, source) for network in models]
    words, scores, result = [UNK] * n, [0.0] * n, []
    for t in range(iterations):
        masked = sorted(range(n), key=lambda i: scores[i])[: n * (iterations - t) // iterations]
        read = [UNK if i in masked else words[i] for i in range(n)]
        inputs = torch.tensor([[BOS, *read, EOS]])
        each = [
            network.decoder(normalize=False, prev_output_tokens=inputs, encoder_out=states).softmax(-1)
            for network, states in zip(models, encoded, strict=True)
        ]
        probabilities = torch.stack(each).mean(dim=0)[0, 1:-1]
        words, scores = list(words), list(scores)
        for i in range(n):
            if correct or read[i] == UNK:  # a word that is <unk> looks like a mask
                words[i] = max(WRITTEN, key=lambda word: float(probabilities[i, word]))
                scores[i] = float(probabilities[i, words[i]].log())
        result.append((read, words, scores))
    return result


def calls(iterations: list[tuple[list[int], list[int], list[float]]], correct: bool = True) -> int:
    """The number of iterations after which no model can change the output: for CMLM until no masks are left, for CMLMC
    until an iteration without masks has left the words unchanged."""
    n, count = len(iterations[0][0]), len(iterations)
    for t, (read, words, _) in enumerate(iterations):
        masked, masked_next = (n * (count - step) // count for step in (t, t + 1))
        if (masked == 0 and words == read) if correct else (masked_next == 0 and UNK not in words):
            return t + 1
    return count


KINDS = {
    "CMLMC": {},
    "CMLMC, pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "length offsets": {"pred_length_offset": True},
    "only masks": {"self_correction": -1},
    "CMLM": {"self_correction": -1, "no_repos": True, "no_concatenated_positions": True},
}


@pytest.mark.parametrize("adaptive", [False, True], ids=["all iterations", "adaptive"])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_mask_predict(kind: str, beam: int, adaptive: bool) -> None:
    options = KINDS[kind]
    network = model(**options)
    changed = 0
    for iterations in (1, 4, 10):
        actual = generator(max_iter=iterations - 1, beam_size=beam, adaptive=adaptive, retain_history=True).generate(
            [network], batch(SOURCES)
        )
        for (hypothesis,), source in zip(actual, SOURCES, strict=True):
            n = predicted_length([network], source, "pred_length_offset" in options)
            lengths = [max(n + offset, min(n, 1)) for offset in ((-1, 0, 1) if beam == 3 else (0,))]
            candidates = []
            for length in lengths:
                correct = options.get("self_correction", 0) >= 0
                refined = mask_predict([network], source, length, iterations, correct)
                candidates.append(refined[: calls(refined, correct) if adaptive else None])
            best = max(candidates, key=lambda refined: sum(refined[-1][2]) / len(refined[-1][2]))
            _, words, scores = best[-1]
            assert hypothesis["tokens"].tolist() == [*words, EOS]
            assert hypothesis["positional_scores"].tolist() == pytest.approx([*scores, 0], abs=tolerance.of_scores())
            assert float(hypothesis["score"]) == pytest.approx(sum(scores) / len(scores), abs=tolerance.of_scores())
            assert hypothesis["steps"] == len(best)
            history = [entry["tokens"].tolist() for entry in hypothesis["history"]]
            assert history == [[*tokens, EOS] for read, written, _ in best for tokens in (read, written)]
            assert ["scores" in entry for entry in hypothesis["history"]] == [False, True] * len(best)
            for entry, (_, _, known) in zip(hypothesis["history"][1::2], best, strict=True):
                assert entry["scores"].tolist()[:-1] == pytest.approx(known, abs=tolerance.of_scores())
            changed += len({tuple(written) for _, written, _ in best}) > 1
    assert changed > 0  # iterations did something


@pytest.mark.parametrize("kind", ["CMLMC", "CMLM"])
def test_stopping_early_changes_no_word(kind: str) -> None:
    """Sentences that stop early have the same outputs after all iterations, for 1 to 60 words and several models."""
    sources = toy.random_sources(60, WORDS, seed=6)
    saved = 0
    for seed in (3, 4, 5):
        network = model(seed, **KINDS[kind])
        lengths = torch.arange(1, 61) + 2
        network.decoder.forward_length_prediction = lambda length_out, encoder_out, lengths=lengths: lengths
        for iterations in (1, 4, 5, 10):
            early, forced = (
                generator(max_iter=iterations - 1, adaptive=adaptive).generate([network], batch(sources))
                for adaptive in (True, False)
            )
            for (mine,), (reference,) in zip(early, forced, strict=True):
                assert mine["tokens"].tolist() == reference["tokens"].tolist()
                torch.testing.assert_close(mine["positional_scores"], reference["positional_scores"])
                assert reference["steps"] == iterations
                saved += iterations - mine["steps"]
    assert saved > 0


def test_lengths_differ_and_candidates_of_each_length_win() -> None:
    """The comparison above is not trivial: candidates n - 1, n and n + 1 are all chosen, for different n."""
    network = model()
    lengths = [predicted_length([network], source) for source in SOURCES]
    assert len(set(lengths)) > 2
    actual = generator(max_iter=3, beam_size=3).generate([network], batch(SOURCES))
    assert {len(h["tokens"]) - 1 - n for (h,), n in zip(actual, lengths, strict=True)} == {-1, 0, 1}


def test_a_sentence_of_no_words_has_only_empty_candidates() -> None:
    actual = generator(max_iter=3, beam_size=3).generate([with_length(model(), 0)], batch(SOURCES))
    assert [(h["tokens"].tolist(), float(h["score"]), h["steps"]) for (h,) in actual] == [([EOS], 0.0, 1)] * 7


@pytest.mark.parametrize("n", [10, 22])
def test_as_many_iterations_as_words_unmask_them_one_by_one(n: int) -> None:
    network = with_length(model(), n)
    with torch.no_grad():
        network.decoder.output_projection.weight[UNK] = 0  # <unk> would look like a mask
    (actual,) = generator(max_iter=n - 1, adaptive=False, retain_history=True).generate([network], batch([[4, 5, 6]]))
    read = [entry["tokens"].eq(UNK).sum() for entry in actual[0]["history"][::2]]
    assert [int(count) for count in read] == list(range(n, 0, -1))


@pytest.mark.parametrize("beam", [1, 3])
def test_an_ensemble_averages_probabilities(beam: int) -> None:
    expected = []
    networks = [model(seed=1), model(seed=2)]
    for source in SOURCES:
        n = predicted_length(networks, source)
        lengths = range(n - 1, n + 2) if beam == 3 else [n]
        candidates = [mask_predict(networks, source, max(length, 1), 5)[-1][1:] for length in lengths]
        expected.append(max(candidates, key=lambda candidate: sum(candidate[1]) / len(candidate[1])))
    alone = generator(max_iter=4, beam_size=beam, adaptive=False).generate([model(seed=1)], batch(SOURCES))
    actual = generator(max_iter=4, beam_size=beam, adaptive=False).generate(networks, batch(SOURCES))
    for (hypothesis,), (words, scores) in zip(actual, expected, strict=True):
        assert hypothesis["tokens"].tolist() == [*words, EOS]
        assert hypothesis["positional_scores"].tolist() == pytest.approx([*scores, 0], abs=tolerance.of_scores())
    assert [h["tokens"].tolist() for (h,) in actual] != [h["tokens"].tolist() for (h,) in alone]


def test_an_ensemble_lasts_for_one_call() -> None:
    first, second = model(seed=1), model(seed=2)
    before = generator(max_iter=3).generate([first], batch(SOURCES))
    together = generator(max_iter=3).generate([first, second], batch(SOURCES))
    after = generator(max_iter=3).generate([first], batch(SOURCES))
    assert [h["tokens"].tolist() for (h,) in after] == [h["tokens"].tolist() for (h,) in before]
    assert [h["tokens"].tolist() for (h,) in after] != [h["tokens"].tolist() for (h,) in together]


@pytest.mark.parametrize("left_pad", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("attention", ["softmax", "amlp_cov", "amlp_pquery", "abc", "local"])
def test_a_sentence_is_translated_alone_as_in_any_batch(attention: str, beam: int, left_pad: bool) -> None:
    types = {f"decoder_{kind}_attention_type": attention for kind in ("self", "cross")}
    network = model(seed=3, **types, attention_window=5)
    refine = generator(max_iter=5, beam_size=beam)
    for (actual,), source in zip(refine.generate([network], batch(SOURCES, left_pad)), SOURCES, strict=True):
        ((alone,),) = refine.generate([network], batch([source]))
        assert actual["tokens"].tolist() == alone["tokens"].tolist()
        assert actual["steps"] == alone["steps"]
        assert float(actual["score"]) == pytest.approx(float(alone["score"]), abs=tolerance.of_scores())
        torch.testing.assert_close(
            actual["positional_scores"], alone["positional_scores"], atol=tolerance.of_scores(), rtol=0
        )


def test_models_prepared_by_fairseqs_commands() -> None:
    """After ``prepare_for_inference_`` the ``eval`` of a model returns nothing."""
    network = model(seed=1)
    before = generator(max_iter=3).generate([network], batch(SOURCES))
    common = SimpleNamespace(bf16=False, fp16=False, cpu=True)
    network.prepare_for_inference_(SimpleNamespace(generation=None, common=common))
    after = generator(max_iter=3).generate([network], batch(SOURCES))
    assert [h["tokens"].tolist() for (h,) in after] == [h["tokens"].tolist() for (h,) in before]


def test_dropout_is_off() -> None:
    network = model(seed=1, dropout=0.5)
    before = generator(max_iter=3).generate([network], batch(SOURCES))
    network.train()
    after = generator(max_iter=3).generate([network], batch(SOURCES))
    assert [float(h["score"]) for (h,) in after] == [float(h["score"]) for (h,) in before]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_decode(dtype: torch.dtype) -> None:
    exact, rough = (
        generator(max_iter=0).generate([network], batch(SOURCES))
        for network in (model(seed=1), model(seed=1).to(dtype))
    )
    close = 0
    for (one,), (other,) in zip(exact, rough, strict=True):
        assert other["positional_scores"].dtype == dtype
        assert other["score"].dtype == torch.float32
        assert torch.isfinite(other["positional_scores"]).all()
        close += len(one["tokens"]) == len(other["tokens"]) and abs(float(one["score"] - other["score"])) < 0.1
    assert close >= 5


def test_bf16_is_taken_by_the_commands() -> None:
    network = model()
    common = SimpleNamespace(bf16=True, fp16=False, cpu=True)
    network.prepare_for_inference_(SimpleNamespace(generation=None, common=common))
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}


def stock(arch: str, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    values = {**toy.SIZES, "max_source_positions": 64, "max_target_positions": 64, "label_smoothing": 0.1, **options}
    return toy.sharpen(TASK.build_model(Namespace(arch=arch, **values)), 3.0)


def test_a_stock_cmlm_is_not_finished_while_there_are_masks() -> None:
    """fairseq's model masks at the end of an iteration, new words too."""
    network = stock("cmlm_transformer", share_all_embeddings=False)
    with torch.no_grad():
        network.decoder.output_projection.weight[:4] = 0  # it never means <unk>
    for length in (2, 3, 7):
        for (hypothesis,) in generator(max_iter=9).generate([with_length(network, length)], batch(SOURCES)):
            assert UNK not in hypothesis["tokens"].tolist()


def test_a_stock_nat_ends_its_hypotheses() -> None:
    """fairseq's model overwrites start and end symbols with its best words."""
    network = with_length(stock("nonautoregressive_transformer"), 5)
    for (hypothesis,) in generator(max_iter=0, beam_size=3).generate([network], batch(SOURCES)):
        *words, last = hypothesis["tokens"].tolist()
        assert last == EOS
        assert EOS not in words
        assert len(hypothesis["positional_scores"]) == len(hypothesis["tokens"])


@pytest.mark.parametrize("left_pad", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("count", [1, 2], ids=["", "ensemble"])
def test_reranked_scores_are_those_of_fairseqs_scorer(count: int, left_pad: bool) -> None:
    networks = [model(seed=seed) for seed in range(1, count + 1)]
    reranking_model = toy.stock_transformer(TASK, seed=4)
    expected, likeliest = [], []
    for source in SOURCES:
        n = predicted_length(networks, source)
        candidates = [mask_predict(networks, source, max(n + offset, 1), 4)[-1][1:] for offset in (-1, 0, 1)]
        scored = toy.scored_by_fairseq(DICTIONARY, reranking_model, [source] * 3, [words for words, _ in candidates])
        expected.append(max(scored, key=lambda hypothesis: float(hypothesis["score"])))
        likeliest.append(max(candidates, key=lambda candidate: sum(candidate[1]) / len(candidate[1]))[0])
    actual = generator(max_iter=3, beam_size=3, adaptive=False, reranking_model=reranking_model).generate(
        networks, batch(SOURCES, left_pad)
    )
    for (hypothesis,), reference in zip(actual, expected, strict=True):
        assert hypothesis["tokens"].tolist() == reference["tokens"].tolist()
        assert float(hypothesis["score"]) == pytest.approx(float(reference["score"]), abs=tolerance.of_scores())
        torch.testing.assert_close(
            hypothesis["positional_scores"], reference["positional_scores"], atol=tolerance.of_scores(), rtol=0
        )
    assert [h["tokens"].tolist()[:-1] for (h,) in actual] != likeliest  # it did change the choice


def test_reranked_in_a_batch_as_by_the_scorer_in_a_batch() -> None:
    """Candidates of different lengths in one batch, padded as fairseq pads them."""
    reranking_model = toy.stock_transformer(TASK, seed=4)
    hypotheses = [[4, 5, 6, 7, 8], [9], [10, 11, 10], [], [4, 4], [5]]
    model = Scripted(
        [
            {len(words): [(words, [-1.0] * len(words))] for words in pair}
            for pair in (hypotheses[:2], hypotheses[2:4], hypotheses[4:])
        ]
    )
    sources = [[8, 9, 10, 11, 4], [5], [7, 6]]
    actual = generator(max_iter=0, beam_size=2, reranking_model=reranking_model).generate([model], batch(sources))
    scored = toy.scored_by_fairseq(
        DICTIONARY, reranking_model, [source for source in sources for _ in range(2)], hypotheses
    )
    for i, (hypothesis,) in enumerate(actual):
        pair = scored[2 * i : 2 * i + 2] if i != 1 else scored[2:3]  # not the empty one
        reference = max(pair, key=lambda candidate: float(candidate["score"]))
        assert hypothesis["tokens"].tolist() == reference["tokens"].tolist()
        assert float(hypothesis["score"]) == pytest.approx(float(reference["score"]), abs=tolerance.of_scores())
        torch.testing.assert_close(
            hypothesis["positional_scores"], reference["positional_scores"], atol=tolerance.of_scores(), rtol=0
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": -1}, "--iter-decode-max-iter -1 must be at least 0"),
        ({"beam_size": 0}, "--iter-decode-with-beam 0 must be at least 1"),
        ({"reranking_model": object()}, "--rescore-path needs candidates: --iter-decode-with-beam 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sizes_below_their_least_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generator(**options)


def test_prefixes_and_constraints_are_refused_by_name() -> None:
    network = Scripted([{1: says("a")}])
    for name, option in (("prefix_tokens", "--prefix-size"), ("constraints", "--constraints")):
        with pytest.raises(ValueError, match=option):
            generator().generate([network], batch([[4]]), **{name: torch.zeros(1, 1)})


def test_a_model_that_changes_the_length_is_named() -> None:
    class Levenshtein(Scripted):
        allow_length_beam = False

    with pytest.raises(ValueError, match=r"Levenshtein does not write sentences of fixed length.*translation_lev"):
        Levenshtein([{1: says("a")}]).translate()
    with pytest.raises(ValueError, match="TransformerModelBase does not write sentences of fixed length"):
        generator().generate([toy.stock_transformer(TASK)], batch(SOURCES))


def test_every_model_of_an_ensemble_is_checked() -> None:
    """``--path nat.pt:ar.pt``."""
    with pytest.raises(ValueError, match="TransformerModelBase does not write sentences of fixed length"):
        generator(beam_size=2).generate([model(), toy.stock_transformer(TASK)], batch(SOURCES))


def test_models_that_form_no_ensemble_are_named() -> None:
    networks = [stock("nacrf_transformer", seed, crf_beam_approx=4) for seed in (1, 2)]
    assert len(generator(max_iter=0).generate(networks[:1], batch(SOURCES))) == len(SOURCES)
    with pytest.raises(ValueError, match=r"NACRFTransformerModel.*ensemble"):
        generator(max_iter=0).generate(networks, batch(SOURCES))
