"""Loss of a language model with an adaptive softmax over all words."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from fairseq.models import BaseFairseqModel
from torch import Tensor

from amlp_fairseq.compat.internals import AdaptiveLoss, AdaptiveLossConfig, register_criterion


@register_criterion("adaptive_nll_loss", dataclass=AdaptiveLossConfig)
class AdaptiveNLLLoss(AdaptiveLoss):
    """fairseq's ``adaptive_loss``, corrected: stock fairseq ignores the second word of every cluster except the first,
    because its index in the cluster equals the padding index. Such a word is never learned, and validation perplexity
    is lower than the perplexity of fairseq-eval-lm."""

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Returns:
            Sum of -log p over all words without padding, in nats; the number by which gradients are divided (sentences
            or words); the values to log.

        Raises:
            ValueError: for a model without an adaptive softmax.
        """
        softmax = getattr(model.decoder, "adaptive_softmax", None)
        if softmax is None:
            raise ValueError("--criterion adaptive_nll_loss needs a model with --adaptive-softmax-cutoff")
        output = model(**sample["net_input"])
        words = model.get_targets(sample, output)
        (head, *tails), (first, *rest) = softmax(output[0], words.view(-1))
        loss = F.cross_entropy(head, first, ignore_index=self.padding_idx, reduction="sum")
        for logits, indices in zip(tails, rest, strict=True):
            if indices is not None:  # the batch has words of this cluster
                loss = loss + F.cross_entropy(logits, indices, reduction="sum")
        tokens = int(words.ne(self.padding_idx).sum())
        size = len(words) if self.sentence_avg else tokens
        logging_output = {"loss": loss.data, "ntokens": tokens, "nsentences": len(words), "sample_size": size}
        return loss, size, logging_output
