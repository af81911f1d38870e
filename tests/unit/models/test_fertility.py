"""NAT with fertilities: copies, losses, candidates and noisy parallel decoding, each against a loop over sentences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import Tensor

from amlp_fairseq.criterions.fertility_nat_loss import FertilityNATLoss
from amlp_fairseq.models.fertility import FertilityConfig, FertilityTransformerModel
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask

WORDS = toy.dictionary(12)
BOS, PAD, EOS = WORDS.bos(), WORDS.pad(), WORDS.eos()
SOURCES = [[5, 6, 6, 7], [8], [9, 10, 11], []]


def build(seed: int = 1, **options: Any) -> FertilityTransformerModel:
    torch.manual_seed(seed)
    options = {"max_source_positions": 64, "max_target_positions": 64, "max_fertility": 3, **toy.SIZES, **options}
    cfg = FertilityConfig(**options, label_smoothing=0.0)
    model = FertilityTransformerModel.build_model(cfg, TranslationCMLMCTask(TranslationCMLMCConfig(), WORDS, WORDS))
    return toy.sharpen(model, 3.0)


def batch(sources: list[list[int]]) -> dict[str, Any]:
    return toy.batch([[BOS, *words] for words in sources], WORDS)


def fertility_log_probs(model: FertilityTransformerModel, words: list[int]) -> Tensor:
    """log p_F of the words of a source, (S, classes)."""
    tokens = torch.tensor([[BOS, *words, EOS]])
    encoded = model.forward_encoder([tokens, torch.tensor([tokens.size(1)])])
    return model.decoder.forward_fertility(normalize=True, encoder_out=encoded)[0, 1:-1]


def log_probs(model: FertilityTransformerModel, words: list[int], fertilities: list[int]) -> Tensor:
    """Log-probabilities of the target's words given the fertilities of the source's, (T, classes)."""
    tokens = torch.tensor([[BOS, *words, EOS]])
    encoded = model.forward_encoder([tokens, torch.tensor([tokens.size(1)])])
    copies = [word for word, count in zip(words, fertilities, strict=True) for _ in range(count)]
    read = torch.tensor([[BOS, *copies, EOS]])
    return model.decoder(normalize=True, prev_output_tokens=read, encoder_out=encoded)[0, 1:-1]


def test_every_word_is_copied_as_often_as_it_is_fertile() -> None:
    tokens = torch.tensor([[PAD, BOS, 5, 6, 6, EOS], [BOS, 7, 8, 9, 4, EOS], [PAD, PAD, PAD, PAD, BOS, EOS]])
    fertilities = torch.tensor([[0, 1, 2, 0, 3, 1], [1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1]])
    assert build().copies(tokens, fertilities).tolist() == [
        [BOS, 5, 5, 6, 6, 6, EOS],
        [BOS, 7, 8, 4, EOS, PAD, PAD],
        [BOS, EOS, PAD, PAD, PAD, PAD, PAD],
    ]


def test_the_loss_is_that_of_the_sums() -> None:
    """- Σ log p_F(f*|x) - Σ log p(y|x, f*), for each word of the target; 5 is more than can be predicted, and so 3."""
    model = build()
    fertilities, targets = [[1, 0, 2, 0], [5], [0, 0, 1], []], [[4, 5, 6], [7] * 5, [8], []]
    sample = batch(SOURCES)
    width = sample["net_input"]["src_tokens"].size(1)
    rows = [[0] * (width - len(row) - 2) + [1, *row, 1] for row in fertilities]
    longest = max(map(len, targets))
    target = [[BOS, *row, EOS, *[PAD] * (longest - len(row))] for row in targets]
    sample |= {"target": torch.tensor(target), "prev_target": torch.tensor(target), "fertilities": torch.tensor(rows)}
    sample |= {"nsentences": 4, "ntokens": 13}
    loss, _, log = FertilityNATLoss(SimpleNamespace(), label_smoothing=0.0)(model, sample)
    expected = torch.tensor(0.0)
    for words, counts, outputs in zip(SOURCES, fertilities, targets, strict=True):
        for scores, count in zip(fertility_log_probs(model, words), counts, strict=True):
            expected = expected - scores[min(count, 3)]
        for scores, word in zip(log_probs(model, words, counts), outputs, strict=True):
            expected = expected - scores[word]
    torch.testing.assert_close(loss, expected / 9)
    assert {"word_ins-loss", "fertility-loss"} < log.keys()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    padded = F.pad(sample["target"], (0, 3), value=PAD)  # --required-seq-len-multiple
    again, *_ = FertilityNATLoss(SimpleNamespace(), label_smoothing=0.0)(model, {**sample, "target": padded})
    torch.testing.assert_close(again, loss)


def test_data_without_alignments_and_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs alignments .* --align-suffix, .* --load-alignments"):
        FertilityNATLoss(SimpleNamespace(), label_smoothing=0.0)(build(), batch(SOURCES))
    with pytest.raises(ValueError, match="fertility_nat_loss is for --arch fertility_transformer"):
        FertilityNATLoss(SimpleNamespace(), label_smoothing=0.0)(toy.cmlmc(), batch(SOURCES))


def search(
    model: FertilityTransformerModel, sources: list[list[int]], models: tuple[Any, ...] = (), **options: Any
) -> Any:
    found = IterativeRefinement(WORDS, **options).generate([model, *models], batch(sources))
    return [hypothesis for (hypothesis,) in found]


def best(model: FertilityTransformerModel, words: list[int], fertilities: list[int]) -> tuple[list[int], float]:
    """G(x, f) with the end symbol, and the mean log-probability of its words."""
    scores = log_probs(model, words, fertilities)
    scores[:, [BOS, PAD, EOS]] = -torch.inf
    score, output = scores.max(dim=1)
    return [*output.tolist(), EOS], float(score.mean()) if len(score) else -float("inf")


@torch.no_grad()
def test_one_pass_writes_the_words_of_the_likeliest_fertilities() -> None:
    model = build()
    found = search(model, SOURCES, max_iter=5, retain_history=True)
    assert {hypothesis["steps"] for hypothesis in found} == {1}
    for words, hypothesis in zip(SOURCES, found, strict=True):
        counts = fertility_log_probs(model, words).argmax(dim=1).tolist()
        output, score = best(model, words, counts)
        assert hypothesis["tokens"].tolist() == output
        assert hypothesis["score"] == pytest.approx(score if len(output) > 1 else 0, abs=1e-5)
        read = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
        assert [step["tokens"].tolist() for step in hypothesis["history"]] == [[*read, EOS], output]
    assert len({len(hypothesis["tokens"]) for hypothesis in found}) > 2


def candidates(model: FertilityTransformerModel, sources: list[list[int]], count: int) -> list[list[list[int]]]:
    """Candidates of the decoder's input for each sentence."""
    given = batch(sources)["net_input"]
    encoded = model.forward_encoder([given["src_tokens"], given["src_lengths"]])
    rows = model.initialize_candidates(encoded, given["src_tokens"], count).output_tokens
    read = [[token for token in row if token != PAD] for row in rows.tolist()]
    return [read[i : i + count] for i in range(0, len(read), count)]


@torch.no_grad()
def test_candidates_are_samples_after_the_likeliest() -> None:
    model, count = build(), 2000
    (read,) = candidates(model, [[5, 8]], count)
    expected = fertility_log_probs(model, [5, 8]).exp()
    assert read[0] == [BOS, *[5] * int(expected[0].argmax()), *[8] * int(expected[1].argmax()), EOS]
    for i, word in enumerate((5, 8)):
        drawn = torch.bincount(torch.tensor([row.count(word) for row in read[1:]]), minlength=4) / (count - 1)
        torch.testing.assert_close(drawn, expected[i], atol=0.05, rtol=0)  # five standard deviations


@torch.no_grad()
def test_candidates_do_not_depend_on_the_batch() -> None:
    model = build()
    together = candidates(model, SOURCES, 6)
    assert together == [candidates(model, [words], 6)[0] for words in SOURCES]
    assert len({str(row) for row in together[0]}) > 2


@torch.no_grad()
def test_noisy_parallel_decoding_takes_what_the_teacher_finds_best() -> None:
    model, teacher = build(), toy.stock_transformer(toy.task())
    read = candidates(model, SOURCES, 6)
    for reranking_model in (None, teacher):
        found = search(model, SOURCES, beam_size=6, reranking_model=reranking_model)
        for words, rows, hypothesis in zip(SOURCES, read, found, strict=True):
            quality = {}
            for row in rows:
                # Of equal neighbours only the sum of the fertilities matters to the decoder.
                counts = [0] * len(words)
                for word in row[1:-1]:
                    counts[words.index(word)] += 1
                output, score = best(model, words, counts)
                if reranking_model is not None and len(output) > 1:
                    score = teacher_score(teacher, words, output)
                quality[tuple(output)] = score
            expected = max(quality, key=lambda output: quality[output])
            assert hypothesis["tokens"].tolist() == list(expected)
            if words:
                assert hypothesis["score"] == pytest.approx(quality[expected], abs=1e-5)


def teacher_score(teacher: Any, words: list[int], output: list[int]) -> float:
    tokens = torch.tensor([[*words, EOS]])
    encoded = teacher.encoder(tokens, src_lengths=torch.tensor([tokens.size(1)]))
    logits, _ = teacher.decoder(torch.tensor([[EOS, *output[:-1]]]), encoder_out=encoded)
    scores = logits[0].log_softmax(dim=1)
    return float(scores[torch.arange(len(output)), torch.tensor(output)].mean())


@torch.no_grad()
def test_outputs_fit_into_the_decoder() -> None:
    model = build(max_target_positions=6)
    model.decoder.fertility.bias[3] = 100  # three of each
    (first, second, *_) = search(model, SOURCES)
    assert len(first["tokens"]) == 4 + 1  # <s> is the sixth
    assert len(second["tokens"]) == 3 + 1


@torch.no_grad()
def test_an_ensemble_means_over_probabilities() -> None:
    models = [build(seed) for seed in (1, 2)]
    (found, *_) = search(models[0], [[5, 8, 7]], (models[1],))
    fertility = torch.stack([fertility_log_probs(model, [5, 8, 7]).exp() for model in models]).mean(dim=0)
    counts = fertility.argmax(dim=1).tolist()
    words = torch.stack([log_probs(model, [5, 8, 7], counts).exp() for model in models]).mean(dim=0)
    words[:, [BOS, PAD, EOS]] = 0
    assert len(counts) > 0 < sum(counts)
    assert found["tokens"].tolist() == [*words.argmax(dim=1).tolist(), EOS]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="--max-fertility 0 must be at least 1"):
        build(max_fertility=0)
    cfg = FertilityConfig(max_source_positions=64, max_target_positions=64, label_smoothing=0.0)
    with pytest.raises(ValueError, match="needs --criterion fertility_nat_loss"):
        build()(torch.tensor([[BOS, EOS]]), torch.tensor([2]), torch.tensor([[BOS, EOS]]), torch.tensor([[BOS, EOS]]))
    with pytest.raises(ValueError, match="needs --task translation_cmlmc"):
        FertilityTransformerModel.build_model(cfg, toy.task())
    other = TranslationCMLMCTask(TranslationCMLMCConfig(), WORDS, toy.dictionary(11))
    with pytest.raises(ValueError, match=r"one dictionary for both languages .*--joined-dictionary"):
        FertilityTransformerModel.build_model(cfg, other)
