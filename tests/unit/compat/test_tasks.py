"""Which tasks are guarded, and what a training from a checkpoint is told. Batches: test_plugin_translation.py; the
command line: test_models_command_line.py."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
import toy
from fairseq.data import LanguagePairDataset
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from amlp_fairseq.compat.tasks import GuardedTranslationTask, guard, is_guarded


def stock_task(words: int = 12) -> Any:
    return TranslationTask(TranslationConfig(data="data"), toy.dictionary(words), toy.dictionary(words))


def test_only_the_task_that_builds_a_model_of_the_plugin_is_guarded() -> None:
    ours, other = stock_task(), stock_task()
    toy.stock_transformer(other)
    guard(ours)
    guard(ours)
    assert isinstance(ours, GuardedTranslationTask)
    assert type(ours).__mro__.count(GuardedTranslationTask) == 1
    assert type(other) is TranslationTask
    assert "dictionaries" not in other.state_dict()
    guard(nothing := object())  # a task that is none of fairseq's
    assert type(nothing) is object


def test_no_task_loses_sentences() -> None:
    """What does not translate neither: language models, speech."""
    words = [torch.tensor([4, 5, 2])] * 13
    lost = FairseqTask(Namespace(data="data"))
    guarded = FairseqTask(Namespace(data="data"))
    guard(guarded)
    for task, sentences in ((lost, 8), (guarded, 13)):
        task.datasets["test"] = LanguagePairDataset(words, [3] * 13, toy.dictionary(12))
        iterator = task.get_batch_iterator(task.dataset("test"), max_sentences=16, required_batch_size_multiple=8)
        found = [batch["id"].numel() for batch in iterator.next_epoch_itr(shuffle=False)]
        assert max(found) == sentences
    trainer = Namespace(task=guarded, cfg=Namespace(checkpoint=Namespace(save_dir="none")))
    assert is_guarded(trainer)
    assert not isinstance(guarded, GuardedTranslationTask)


@pytest.mark.parametrize("each", [False, True])
def test_batches_are_composed_anew_for_each_epoch_if_asked(each: bool) -> None:
    """``--update-epoch-batch-itr``."""
    task = FairseqTask(Namespace(data="data"))
    guard(task)
    rows = [torch.tensor([4, 5, 2])] * 40
    task.datasets["train"] = LanguagePairDataset(rows, [3] * 40, toy.dictionary(12))

    def batches(epoch: int) -> set[frozenset[int]]:
        options = {"max_sentences": 4, "seed": 1, "epoch": epoch, "update_epoch_batch_itr": each}
        iterator = task.get_batch_iterator(task.dataset("train"), **options, disable_iterator_cache=True)
        return {frozenset(batch["id"].tolist()) for batch in iterator.next_epoch_itr(shuffle=False)}

    assert batches(1) == batches(1)
    assert (batches(1) == batches(2)) != each


def test_state_that_was_loaded_before_is_checked() -> None:
    trained = stock_task()
    guard(trained)
    same, other = stock_task(), stock_task(words=11)
    for task in (same, other):
        task.load_state_dict({**trained.state_dict(), "own": 3})
    guard(same)
    assert same.state_dict() == {**trained.state_dict(), "own": 3}
    with pytest.raises(ValueError, match=r"source dictionary of data \(15 entries.*trained with \(16 entries"):
        guard(other)


def test_steps_are_those_of_the_longest_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [[{"tokens": [5, 2]}, {"tokens": [5, 6, 7, 2]}], [{"tokens": [2], "steps": 9}], []]
    monkeypatch.setattr(TranslationTask, "inference_step", lambda *_: sentences)
    task = stock_task()
    guard(task)
    found = task.inference_step(None, None, None)
    assert [[hypothesis["steps"] for hypothesis in sentence] for sentence in found] == [[4, 4], [9], []]
