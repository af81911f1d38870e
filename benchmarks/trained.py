"""Trained models and test sets for benchmarks/decoding.py."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sacremoses
import torch
from fairseq import checkpoint_utils
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu import BLEU

from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.training.data_folder import text_settings
from benchmarks.engines import for_inference
from benchmarks.systems import Built


def load(path: str, data: str, device: str) -> Built:
    """A checkpoint, with the task that its model was trained for, on a data folder."""
    changes = {"data": data, "eval_bleu": False}  # which would build a generator
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=changes)
    return Built(for_inference(models[0], device), task)


class TestSet:
    """The test set of a folder of amlp-fairseq prepare.

    Args:
        data: the folder.
        tasks: those of the checkpoints, which determine the languages.
        sentences: how many of the first to take; None for all.

    Attributes:
        sources: the ids of each sentence's words.
        lengths: how many words each reference has.
        references: their raw texts.

    Raises:
        ValueError: if the checkpoints do not translate in the same direction.
    """

    def __init__(self, data: str, tasks: list[Any], sentences: int | None) -> None:
        self.settings = text_settings(Path(data))
        directions = {(task.cfg.source_lang, task.cfg.target_lang) for task in tasks}
        if len(directions) > 1:
            raise ValueError(f"the checkpoints translate in different directions: {directions}")
        source, self.language = next(iter(directions), self.settings["languages"])
        self.task = TranslationTask.setup_task(
            TranslationConfig(data=data, source_lang=source, target_lang=self.language, dataset_impl=None)
        )
        self.source, self.target = self.task.source_dictionary, self.task.target_dictionary
        self.task.load_dataset("test")
        pairs = self.task.dataset("test")
        count = min(sentences or len(pairs), len(pairs))
        self.sources = [pairs[i]["source"][:-1].tolist() for i in range(count)]
        self.lengths = [len(pairs[i]["target"]) - 1 for i in range(count)]
        self.references = read_references(Path(data, "raw", f"test.{self.language}"))[:count]

    def text(self, tokens: list[int]) -> str:
        """The detokenised text of a sentence."""
        line = self.target.string(torch.tensor(tokens), self.settings["post_process"])
        if self.settings["tokenizer"] is None:
            return str(line)
        return str(sacremoses.MosesDetokenizer(lang=self.language).detokenize(line.split()))

    def bleu(self, outputs: dict[int, list[int]], bins: dict[str, list[int]]) -> dict[str, Any]:
        """sacreBLEU of the outputs of all sentences and of those in each bin of sources' lengths, and its signature."""
        metric = BLEU()
        texts = [self.text(outputs[i]) for i in range(len(self.references))]

        def score(chosen: Iterable[int]) -> float:
            pairs = [(texts[i], self.references[i]) for i in chosen]
            hypotheses, references = map(list, zip(*pairs, strict=True))
            return float(metric.corpus_score(hypotheses, [references]).score)

        by_length = {name: score(chosen) for name, chosen in bins.items()}
        scores = {"bleu": score(range(len(texts))), "bleu_by_source_length": by_length}
        return scores | {"bleu_signature": str(metric.get_signature())}
