"""The multi-word beam search against fairseq's, against brute force, and against the model's own probabilities."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import tolerance
import torch
import toy
from fairseq.sequence_generator import SequenceGenerator
from pairwise import pairwise

from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

PATTERNS = [(1, 1), (1, 3), (2, 0), (2, 1), (2, 2), (4, 1), (4, 2)]
EOS = 2

pytestmark = pytest.mark.usefixtures("backend")


def build(h: int, c: int, words: int = 12, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    task = toy.task(words, num_directions=h, words_per_direction=c)
    return task, toy.model(task, seed, **options)


CONVOLUTION = {"decoder_self_attention_type": "dynamic_conv", "decoder_kernel_size_list": [3, 7]}
of_every_kind = pytest.mark.parametrize("options", [{}, CONVOLUTION], ids=["softmax", "dynamic_conv"])


def search(task: Any, models: list[Any], sample: dict, **options: Any) -> list[list[dict]]:
    chosen = SearchOptions(**{"beam_size": 4, "max_len_b": 12, **options})
    return MultiwordBeamSearch(models, task.tgt_dict, task.order, chosen).generate(models, sample)


def sources(task: Any, count: int = 5, seed: int = 0) -> dict:
    return toy.batch(toy.random_sources(count, len(task.src_dict) - 4, seed), task.src_dict)


def teacher_forced(task: Any, model: Any, source: list[int], words: list[int]) -> torch.Tensor:
    """Log-probabilities of the words of a hypothesis, in the order of generation, and of the end symbol."""
    pattern = task.order
    generated = pattern.interleave(torch.tensor(words, dtype=torch.long))
    length = pattern.padded_length(len(words) + 1)
    inputs = torch.cat([torch.full((pattern.words_per_step,), EOS), generated])[:length].unsqueeze(0)
    net_input = toy.batch([source], task.src_dict)["net_input"]
    with torch.no_grad():
        output = model(**net_input, prev_output_tokens=inputs)
        lprobs = model.get_normalized_probs(output, log_probs=True)[0]
    expected = torch.cat([generated, torch.tensor([EOS])])
    return lprobs[torch.arange(len(expected)), expected]


class BlockerThatSeesTheWords(torch.nn.Module):
    """fairseq's n-gram blocker, given the words so far: stock gives it the whole buffer, padding included, so that
    on a CPU it never finds a repetition."""

    def __init__(self, blocker: torch.nn.Module) -> None:
        super().__init__()
        self.blocker = blocker

    def forward(self, tokens: torch.Tensor, lprobs: torch.Tensor, bsz: int, beam: int, step: int) -> torch.Tensor:
        return self.blocker(tokens[:, : step + 1], lprobs, bsz, beam, step)


@pytest.mark.parametrize(
    ("backend", "kind", "beam", "lenpen", "ngram"),
    pairwise(["engine", "PyTorch"], ["ibdecoder", "transformer"], [1, 4, 5], [0.0, 0.6, 1.0, 2.0], [0, 2, 3]),
    indirect=["backend"],
)
def test_one_word_per_step_is_fairseqs_search(kind: str, beam: int, lenpen: float, ngram: int) -> None:
    task = toy.task(num_directions=1)
    model = toy.model(task, seed=beam) if kind == "ibdecoder" else toy.stock_transformer(task, seed=beam)
    sample = sources(task, 6, seed=beam)
    options = {"beam_size": beam, "max_len_b": 15, "len_penalty": lenpen, "no_repeat_ngram_size": ngram}
    stock = SequenceGenerator([model], task.tgt_dict, **options)
    if ngram:
        stock.repeat_ngram_blocker = BlockerThatSeesTheWords(stock.repeat_ngram_blocker)
    for ours, theirs in zip(search(task, [model], sample, **options), stock.generate([model], sample), strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert float(mine["score"]) == pytest.approx(
                float(other["score"]), abs=tolerance.of_scores(16 ** (1 - min(lenpen, 1)))
            )
            torch.testing.assert_close(
                mine["positional_scores"], other["positional_scores"], atol=tolerance.of_scores(), rtol=0
            )


@pytest.mark.parametrize(
    "options",
    [
        {"unk_penalty": 1.5},
        {"min_len": 4},
        {"normalize_scores": False},
        {"temperature": 0.7},
        {"max_len_a": 1.0, "max_len_b": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_options_are_fairseqs(options: dict) -> None:
    task = toy.task(num_directions=1)
    model = toy.model(task, seed=3)
    options = {"beam_size": 4, "max_len_b": 15, **options}
    for source in toy.random_sources(5, 12, seed=2):  # one by one: stock's length limit depends on the batch
        sample = toy.batch([source], task.src_dict)
        (ours,) = search(task, [model], sample, **options)
        (theirs,) = SequenceGenerator([model], task.tgt_dict, **options).generate([model], sample)
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        assert [float(h["score"]) for h in ours] == pytest.approx(
            [float(h["score"]) for h in theirs], abs=tolerance.of_scores(16)
        )


@pytest.mark.parametrize("lenpen", [0.0, 1.0])
@pytest.mark.parametrize(("h", "c", "ngram"), [(1, 1, 0), (2, 1, 0), (2, 2, 0), (4, 1, 0), (1, 2, 1), (1, 2, 2)])
def test_a_beam_that_covers_everything_finds_all_sequences(h: int, c: int, ngram: int, lenpen: float) -> None:
    task, model = build(h, c, words=1, seed=h + c)
    longest = 5
    words = [symbol for symbol in range(len(task.tgt_dict)) if symbol not in (task.tgt_dict.pad(), EOS)]
    source = [4, 4, 3]
    expected = {}
    for n in range(1, longest + 1):
        for sequence in itertools.product(words, repeat=n):
            ngrams = [sequence[i : i + ngram] for i in range(n - ngram + 1)]
            if ngram == 0 or len(set(ngrams)) == len(ngrams):
                score = float(teacher_forced(task, model, source, list(sequence)).sum()) / (n + 1) ** lenpen
                expected[(*sequence, EOS)] = score
    (actual,) = search(
        task,
        [model],
        toy.batch([source], task.src_dict),
        beam_size=sum(len(words) ** n for n in range(1, longest + 1)),
        max_len_b=longest,
        len_penalty=lenpen,
        no_repeat_ngram_size=ngram,
    )
    scores = [float(hypothesis["score"]) for hypothesis in actual]
    assert scores == sorted(scores, reverse=True)
    tokens = [tuple(hypothesis["tokens"].tolist()) for hypothesis in actual]
    assert dict(zip(tokens, scores, strict=True)) == pytest.approx(expected, abs=tolerance.of_scores(6))


@of_every_kind
@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_printed_scores_are_the_models_probabilities(h: int, c: int, options: dict) -> None:
    task, model = build(h, c, **options)
    for source in toy.random_sources(4, 12):
        (actual,) = search(task, [model], toy.batch([source], task.src_dict), len_penalty=0.6)
        assert len(actual) == 4
        for hypothesis in actual:
            words = hypothesis["tokens"][:-1].tolist()
            expected = teacher_forced(task, model, source, words)
            in_reading_order = torch.cat([task.order.recover(expected[:-1]), expected[-1:]])
            torch.testing.assert_close(
                hypothesis["positional_scores"], in_reading_order, atol=tolerance.of_scores(), rtol=0
            )
            score = float(expected.sum()) / len(expected) ** 0.6
            assert float(hypothesis["score"]) == pytest.approx(score, abs=tolerance.of_scores(len(expected) ** 0.4))
            assert hypothesis["steps"] == -(-len(expected) // (h * c or 1))


def test_gnmt_length_penalty() -> None:
    task, model = build(2, 1)
    (actual,) = search(task, [model], sources(task, 1), len_penalty=0.6, length_penalty_kind="gnmt")
    for hypothesis in actual:
        total, length = float(hypothesis["positional_scores"].sum()), len(hypothesis["tokens"])
        assert float(hypothesis["score"]) == pytest.approx(
            total / ((5 + length) / 6) ** 0.6, abs=tolerance.of_scores(length**0.4)
        )


def test_words_after_the_end_can_be_counted() -> None:
    task, model = build(2, 2)
    sample = sources(task, 5)
    differences = 0
    for actual in search(task, [model], sample, words_after_end="count"):
        for hypothesis in actual:
            total = float(hypothesis["positional_scores"].sum())
            after_end = float(hypothesis["score"]) * 4 * hypothesis["steps"] - total
            if len(hypothesis["tokens"]) % 4 == 0:
                assert after_end == pytest.approx(0, abs=tolerance.of_scores(4 * hypothesis["steps"]))
            else:
                assert after_end < 0
                differences += 1
    assert differences > 0


@pytest.mark.parametrize(
    ("pattern", "backend", "ngram", "options"),
    pairwise(PATTERNS, ["engine", "PyTorch"], [0, 2], [{}, CONVOLUTION]),
    indirect=["backend"],
)
def test_a_sentence_is_translated_alone_as_in_any_batch(pattern: tuple[int, int], ngram: int, options: dict) -> None:
    task, model = build(*pattern, **options)
    rows = toy.random_sources(7, 12, seed=5)
    options = {"max_len_a": 1.5, "max_len_b": 3, "no_repeat_ngram_size": ngram}
    left = search(task, [model], toy.batch(rows, task.src_dict), **options)
    right = search(task, [model], toy.batch(rows, task.src_dict, left_pad=False), **options)
    for row, by_left, by_right in zip(rows, left, right, strict=True):
        (alone,) = search(task, [model], toy.batch([row], task.src_dict), **options)
        for actual in (by_left, by_right):
            assert [h["tokens"].tolist() for h in actual] == [h["tokens"].tolist() for h in alone]
            for one, other in zip(actual, alone, strict=True):
                torch.testing.assert_close(
                    one["positional_scores"], other["positional_scores"], atol=tolerance.of_scores(), rtol=0
                )


@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_length_limits(h: int, c: int) -> None:
    task, model = build(h, c)
    for shortest, longest in [(1, 1), (3, 3), (5, 7)]:
        for actual in search(task, [model], sources(task), min_len=shortest, max_len_b=longest):
            assert actual
            assert all(shortest <= len(hypothesis["tokens"]) - 1 <= longest for hypothesis in actual)
    with pytest.raises(ValueError, match="--min-len 9 exceeds the 8 words"):
        search(task, [model], sources(task), min_len=9, max_len_b=8)


@pytest.mark.parametrize(("h", "c"), PATTERNS)
def test_no_output_exceeds_the_positions_of_any_model(h: int, c: int) -> None:
    """Independently of ``--max-len-b``: 8 positions hold 7 words and the end symbol."""
    task, short = build(h, c, max_target_positions=8)
    models = [toy.model(task, seed=1), short]
    for actual in search(task, models, sources(task), min_len=7, max_len_b=50):
        assert actual
        assert all(len(hypothesis["tokens"]) == 8 for hypothesis in actual)
    with pytest.raises(ValueError, match="--min-len 8 exceeds the 7 words"):
        search(task, models, sources(task), min_len=8, max_len_b=50)


@pytest.mark.parametrize(("h", "c"), PATTERNS)
@pytest.mark.parametrize("size", [1, 2])
def test_no_ngram_is_repeated(h: int, c: int, size: int) -> None:
    task, model = build(h, c, seed=2)
    longest = 12 if size == 2 else 9
    repeating = 0
    for ngram in (0, size):
        for actual in search(task, [model], sources(task), no_repeat_ngram_size=ngram, max_len_b=longest):
            words = actual[0]["tokens"][:-1].tolist()
            ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
            repeats = len(set(ngrams)) < len(ngrams)
            if ngram == 0:
                repeating += repeats
            elif len(words) < longest:  # at the limit the seams are not checked: something must be returned
                assert not repeats
    assert repeating > 0


def test_a_sentence_that_only_repeats_at_seams_is_still_translated() -> None:
    task, model = build(4, 2, seed=1)
    actual = search(task, [model], sources(task), no_repeat_ngram_size=2)
    assert all(len(hypotheses) > 0 for hypotheses in actual)


def test_deduplication_keeps_words_and_scores_together() -> None:
    task, model = build(2, 1, seed=1)
    plain = search(task, [model], sources(task))
    shorter = 0
    for actual, cleaned in zip(plain, search(task, [model], sources(task), deduplicate_ngram_size=2), strict=True):
        assert [float(h["score"]) for h in actual] == [float(h["score"]) for h in cleaned]
        for before, after in zip(actual, cleaned, strict=True):
            words = after["tokens"].tolist()
            assert all(one != other for one, other in itertools.pairwise(words))
            pairs = list(zip(before["tokens"].tolist(), before["positional_scores"].tolist(), strict=True))
            for pair in zip(words, after["positional_scores"].tolist(), strict=True):
                assert pair in pairs
            shorter += len(words) < len(pairs)
    assert shorter > 0


def test_an_empty_source_gives_an_empty_hypothesis_at_its_place() -> None:
    task, model = build(2, 1)
    full = search(task, [model], toy.batch([[5, 6], [7]], task.src_dict))
    mixed = search(task, [model], toy.batch([[5, 6], [], [7], []], task.src_dict))
    assert [h["tokens"].tolist() for h in mixed[0]] == [h["tokens"].tolist() for h in full[0]]
    assert [h["tokens"].tolist() for h in mixed[2]] == [h["tokens"].tolist() for h in full[1]]
    for row in (1, 3):
        assert [h["tokens"].tolist() for h in mixed[row]] == [[EOS]]
        assert float(mixed[row][0]["score"]) == 0
        assert mixed[row][0]["positional_scores"].tolist() == [0]
    assert [h["tokens"].tolist() for (h,) in search(task, [model], toy.batch([[]], task.src_dict))] == [[EOS]]


def test_an_ensemble_averages_probabilities() -> None:
    task, first = build(2, 1)
    second = toy.model(task, seed=9)
    (source,) = toy.random_sources(1, 12)
    sample = toy.batch([source], task.src_dict)
    (alone,), (twice,) = search(task, [first], sample), search(task, [first, first], sample)
    assert [h["tokens"].tolist() for h in alone] == [h["tokens"].tolist() for h in twice]
    for hypothesis in search(task, [first, second], sample)[0]:
        words = hypothesis["tokens"][:-1].tolist()
        each = [teacher_forced(task, model, source, words).exp() for model in (first, second)]
        expected = ((each[0] + each[1]) / 2).log()
        recovered = torch.cat([task.order.recover(expected[:-1]), expected[-1:]])
        torch.testing.assert_close(hypothesis["positional_scores"], recovered, atol=tolerance.of_scores(), rtol=0)


def test_alignment_follows_reading_order() -> None:
    task, model = build(2, 1)
    (source,) = toy.random_sources(1, 12, seed=4, longest=9)
    (actual,) = search(task, [model], toy.batch([source], task.src_dict), alignment="hard")
    tokens = actual[0]["tokens"]
    words = tokens[:-1]
    inputs = torch.cat([torch.full((2,), EOS), task.order.interleave(words)])
    inputs = inputs[: task.order.padded_length(len(tokens))].unsqueeze(0)
    _, extra = model(**toy.batch([source], task.src_dict)["net_input"], prev_output_tokens=inputs)
    attention = task.order.recover(extra["attn"][0][0, : len(words)])[:, : len(source)]
    assert actual[0]["alignment"] == [(int(row.argmax()), i) for i, row in enumerate(attention)]
    assert actual[0]["attention"].shape == (len(source) + 1, len(tokens))
    soft = search(task, [model], toy.batch([source], task.src_dict), alignment="soft")[0][0]["alignment"]
    assert len(soft) == len(tokens)
    twice = search(task, [model, model], toy.batch([source], task.src_dict), alignment="soft")[0][0]["alignment"]
    one, mean = ([[float(weight) for weight in row] for row in rows] for rows in (soft, twice))  # as in fairseq
    torch.testing.assert_close(torch.tensor(mean), torch.tensor(one))


def test_a_batch_without_sentences_has_no_hypotheses() -> None:
    task, model = build(2, 1)
    batch = sources(task)
    batch["net_input"] = {name: tensor[:0] for name, tensor in batch["net_input"].items()}
    assert search(task, [model], batch) == []


def test_outputs_of_final_models_can_be_changed() -> None:
    """The search itself runs in inference mode, whose tensors cannot be changed in place."""
    task, model = build(2, 1)
    common = SimpleNamespace(bf16=False, fp16=False, cpu=True)
    model.prepare_for_inference_(SimpleNamespace(generation=None, common=common))
    for best, *_ in search(task, [model], sources(task), alignment="hard"):
        for name in ("tokens", "score", "positional_scores", "attention"):
            best[name].mul_(2)
        assert len(best["tokens"]) == len(best["positional_scores"]) == best["attention"].size(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_decode(dtype: torch.dtype) -> None:
    task, model = build(2, 2)
    exact = search(task, [model], sources(task), beam_size=1)
    rough = search(task, [toy.model(task).to(dtype)], sources(task), beam_size=1)
    assert all(torch.isfinite(actual[0]["positional_scores"]).all() for actual in rough)
    same = sum(a[0]["tokens"].tolist() == b[0]["tokens"].tolist() for a, b in zip(exact, rough, strict=True))
    assert same >= 3


def test_a_model_without_probabilities_is_named() -> None:
    task, model = build(2, 1)
    with torch.no_grad():
        model.decoder.output_projection.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="no hypothesis"):
        search(task, [model], sources(task))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sampling": True, "sampling_topk": 5}, "--sampling True, --sampling-topk 5"),
        ({"constraints": "ordered"}, "--constraints ordered"),
        ({"prefix_size": 2}, "--prefix-size 2"),
        ({"score_reference": True}, "--score-reference True"),
        ({"diverse_beam_groups": 2}, "--diverse-beam-groups 2"),
        ({"diversity_rate": 0.5}, "--diversity-rate 0.5"),
        ({"match_source_len": True}, "--match-source-len True"),
        ({"lm_path": "lm.pt"}, "--lm-path lm.pt"),
        ({"lm_weight": 0.5}, "--lm-weight 0.5"),
        ({"iter_decode_max_iter": 3}, "--iter-decode-max-iter 3"),
        ({"retain_iter_history": True}, "--retain-iter-history True"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_the_search_cannot_honour_is_refused_by_name(options: dict, named: str) -> None:
    task, model = build(2, 1)
    with pytest.raises(ValueError, match=named):
        task.build_generator([model], SimpleNamespace(beam=4, **options))


def test_prefixes_and_constraints_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = build(2, 1)
    generator = task.build_generator([model], SimpleNamespace(beam=2))
    monkeypatch.setattr(generator.engine_models, "use_engine", False)
    with pytest.raises(ValueError, match="prefix_tokens"):
        task.inference_step(generator, [model], sources(task), prefix_tokens=torch.zeros(5, 1))
    with pytest.raises(ValueError, match="constraints"):
        task.inference_step(generator, [model], sources(task), constraints=torch.zeros(5, 1))
    for option, value in (("beam", 0), ("temperature", 0.0)):
        with pytest.raises(ValueError, match=f"--{option}"):
            task.build_generator([model], SimpleNamespace(**{option: value}))
