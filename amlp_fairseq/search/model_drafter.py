"""Drafts by a model in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from amlp_fairseq.search.drafts import SentenceDraft
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch


class ModelDrafter:
    """Drafts whole sentences with a model of the plugin, which decodes once.

    Args:
        task: the model's task.
        model: prepared for inference.
        generator: the task's generator.
    """

    def __init__(
        self, task: FairseqTask, model: BaseFairseqModel, generator: MultiwordBeamSearch | IterativeRefinement
    ) -> None:
        self.task, self.model, self.generator = task, model, generator

    def begin(self, sources: Sequence[Sequence[int]]) -> list[SentenceDraft]:
        tokens, device = [torch.tensor(source) for source in sources], next(self.model.parameters()).device
        dataset = self.task.build_dataset_for_inference(tokens, [len(source) for source in tokens])
        batch = dataset.collater([dataset[index] for index in range(len(tokens))])
        batch["net_input"] = {
            name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch["net_input"].items()
        }
        with torch.no_grad():
            hypotheses = self.task.inference_step(self.generator, [self.model], batch)
        by_row = dict(zip(batch["id"].tolist(), hypotheses, strict=True))
        return [SentenceDraft(by_row[row][0]["tokens"].tolist()[:-1]) for row in range(len(tokens))]
