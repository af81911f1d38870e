"""Batches have every sentence; criteria in reading order are refused for other orders."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

SENTENCES = 13


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 1 to 13 words that ``--dataset-impl raw`` reads."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    words = [f"w{i}" for i in range(12)]
    for language in ("src", "tgt"):
        lengths = rng.sample(range(1, SENTENCES + 1), SENTENCES)
        sentences = [" ".join(rng.choices(words, k=length)) for length in lengths]
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))
        (folder / f"test.src-tgt.{language}").write_text("\n".join(sentences) + "\n")
    return folder


def task_with_data(kind: Any, config: Any, corpus: Path, **given: Any) -> Any:
    languages = {"source_lang": "src", "target_lang": "tgt"}
    result = kind.setup_task(
        config(data=str(corpus), **languages, dataset_impl="raw", required_seq_len_multiple=1, **given)
    )
    result.load_dataset("test")
    return result


def interleaved_task(corpus: Path, **given: Any) -> TranslationInterleavedTask:
    return task_with_data(TranslationInterleavedTask, TranslationInterleavedConfig, corpus, **given)


def batches(task: Any, **limits: int) -> list[dict[str, Any]]:
    iterator = task.get_batch_iterator(
        task.dataset("test"), max_positions=(64, 64), required_batch_size_multiple=8, **limits
    )
    return list(iterator.next_epoch_itr(shuffle=False))


def sentences(found: list[dict[str, Any]]) -> list[int]:
    return sorted(i for batch in found for i in batch["id"].tolist())


LIMITS: list[dict[str, int]] = [{"max_sentences": 4}, {"max_sentences": 16}, {"max_tokens": 30}, {"max_tokens": 150}]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_no_sentence_is_lost(limits: dict[str, int], corpus: Path) -> None:
    assert sentences(batches(interleaved_task(corpus), **limits)) == list(range(SENTENCES))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_batches_keep_their_limits(limits: dict[str, int], corpus: Path) -> None:
    found = batches(interleaved_task(corpus), **limits)
    for batch in found:
        rows, width = batch["target"].shape
        assert rows <= limits.get("max_sentences", SENTENCES)
        assert rows * max(width, batch["net_input"]["src_tokens"].size(1)) <= limits.get("max_tokens", 1000)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_the_stock_task_loses_sentences(limits: dict[str, int], corpus: Path) -> None:
    """The trap that the plugin's task avoids; when this fails, fairseq has changed."""
    found = sentences(batches(task_with_data(TranslationTask, TranslationConfig, corpus), **limits))
    assert len(found) == len(set(found)) < SENTENCES


def log_likelihood(model: Any, found: list[dict[str, Any]]) -> float:
    total = 0.0
    for batch in found:
        with torch.no_grad():
            lprobs = model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
        target = model.get_targets(batch, None)
        words = lprobs.gather(2, target.unsqueeze(2)).squeeze(2)
        total += float(words[target.ne(model.decoder.padding_idx)].sum())
    return total


@pytest.mark.parametrize("pattern", [(2, 1), (2, 2)], ids=str)
def test_length_buckets(pattern: tuple[int, int], corpus: Path) -> None:
    """``--num-batch-buckets``: few different widths, all sentences, the same likelihood."""
    given = {"num_directions": pattern[0], "words_per_direction": pattern[1]}
    plain_task, bucket_task = interleaved_task(corpus, **given), interleaved_task(corpus, **given, num_batch_buckets=2)
    plain, bucketed = batches(plain_task, max_tokens=60), batches(bucket_task, max_tokens=60)
    assert sentences(bucketed) == list(range(SENTENCES))
    assert len({batch["net_input"]["src_tokens"].size(1) for batch in bucketed}) <= 2
    model = toy.model(plain_task)
    assert log_likelihood(model, bucketed) == pytest.approx(log_likelihood(model, plain), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("label_smoothed_cross_entropy", {"ignore_prefix_size": 1}, "--ignore-prefix-size is for targets from left"),
        ("label_smoothed_cross_entropy_with_alignment", {"alignment_lambda": 0.05}, "--criterion label_.* is for"),
    ],
)
def test_criteria_in_reading_order(name: str, options: dict[str, Any], message: str) -> None:
    """These criteria count positions of the target, which are different words in interleaved order."""
    given = {"label_smoothing": 0.1, "ignore_prefix_size": 0, "sentence_avg": False, "report_accuracy": False}
    cfg = OmegaConf.create({"_name": name, **given, **options})
    assert toy.task(num_directions=1).build_criterion(cfg)
    with pytest.raises(ValueError, match=message):
        toy.task().build_criterion(cfg)


def test_the_loss_of_other_models() -> None:
    cfg = OmegaConf.create({"_name": "nat_loss", "label_smoothing": 0.1})
    for directions in (1, 2):
        with pytest.raises(ValueError, match="--criterion nat_loss: it is for the models of --task translation_cmlmc"):
            toy.task(num_directions=directions).build_criterion(cfg)
