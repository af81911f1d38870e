"""The loss of a language model with an adaptive softmax, of every word."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from amlp_fairseq.compat.internals import AdaptiveLoss, AdaptiveLossConfig, register_criterion


@register_criterion("adaptive_nll_loss", dataclass=AdaptiveLossConfig)
class AdaptiveNLLLoss(AdaptiveLoss):
    """fairseq's ``adaptive_loss`` without its gap: there the second word of each cluster but the first costs nothing,
    because its number within the cluster is that of padding. Such a word is never learned, and perplexity in validation
    is lower than that of fairseq-eval-lm."""

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, int, dict[str, Any]]:
        """The sum of -log p over all words but padding, in nats; the number that gradients are divided by; what is
        logged.

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
        for logits, numbers in zip(tails, rest, strict=True):
            if numbers is not None:  # words of this cluster
                loss = loss + F.cross_entropy(logits, numbers, reduction="sum")
        tokens = int(words.ne(self.padding_idx).sum())
        size = len(words) if self.sentence_avg else tokens
        logged = {"loss": loss.data, "ntokens": tokens, "nsentences": len(words), "sample_size": size}
        return loss, size, logged
