"""The loss of ``fertility_transformer``."""

from __future__ import annotations

from functools import partial
from typing import Any

from amlp_fairseq.compat.internals import NATLoss, NATLossConfig, register_criterion


@register_criterion("fertility_nat_loss", dataclass=NATLossConfig)
class FertilityNATLoss(NATLoss):
    """fairseq's ``nat_loss`` that shows the model the fertilities of the source words, see ``StartSymbolPairDataset``.

    Raises:
        ValueError: if the data have no alignments, or the model no fertilities.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        if not hasattr(model, "initialize_candidates"):
            raise ValueError("--criterion fertility_nat_loss is for --arch fertility_transformer")
        if "fertilities" not in sample:
            raise ValueError(
                "--criterion fertility_nat_loss needs alignments of the training and the validation set: "
                "fairseq-preprocess --align-suffix, and --task translation_cmlmc --load-alignments"
            )
        return super().forward(partial(model, fertilities=sample["fertilities"]), sample, reduce)
