"""Loss of ``fertility_transformer``."""

from __future__ import annotations

from functools import partial
from typing import Any

from fairseq.models import BaseFairseqModel
from torch import Tensor

from amlp_fairseq.compat.internals import NATLoss, NATLossConfig, register_criterion
from amlp_fairseq.models.interfaces import CandidateModel


@register_criterion("fertility_nat_loss", dataclass=NATLossConfig)
class FertilityNATLoss(NATLoss):
    """fairseq's ``nat_loss``, which also passes the fertilities of the source words to the model (see
    ``StartSymbolPairDataset``).

    Raises:
        ValueError: if the data have no alignments, or the model is not a ``fertility_transformer``.
    """

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        has_fertilities = isinstance(model, CandidateModel)
        if not has_fertilities:
            raise ValueError("--criterion fertility_nat_loss is for --arch fertility_transformer")
        if "fertilities" not in sample:
            raise ValueError(
                "--criterion fertility_nat_loss needs alignments of the training and the validation set: "
                "fairseq-preprocess --align-suffix, and --task translation_cmlmc --load-alignments"
            )
        return super().forward(partial(model, fertilities=sample["fertilities"]), sample, reduce)
