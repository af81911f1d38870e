"""Language pairs for non-autoregressive models, which read the start symbol on both sides."""

from __future__ import annotations

import logging
from typing import Any

import torch
from fairseq.data import LanguagePairDataset, PrependTokenDataset
from torch import Tensor

from amlp_fairseq.data.fertilities import fertilities

logger = logging.getLogger(__name__)

#: Lengths that fairseq's NAT models can predict, start and end included, without --pred-length-offset.
LENGTHS = 256


class StartSymbolPairDataset(LanguagePairDataset):
    """A language-pair dataset whose sources begin with the start symbol, and whose sizes count it on both sides.

    Targets do not contain it, because scoring, ``T-`` lines and ``--eval-bleu`` read them; their sizes count it,
    because the decoder reads it. Logs a warning if some targets are too long for the length prediction.

    Batches of a dataset with alignments (``--load-alignments``) have ``fertilities`` (B, S): how many words of the
    target each word of the source stands for, and 1 for its start and end.

    Args:
        pairs: the dataset to start from; it is not changed.
        name: the dataset's name in messages.

    Raises:
        ValueError: if there are not as many alignments as pairs.
    """

    def __init__(self, pairs: LanguagePairDataset, name: str) -> None:
        self.__dict__.update(vars(pairs))
        self.name = name
        self.src = PrependTokenDataset(pairs.src, pairs.src_dict.bos())
        self.src_sizes, self.sizes = pairs.src_sizes + 1, pairs.sizes + 1
        if pairs.tgt is None:
            return
        if pairs.align_dataset is not None and len(pairs.align_dataset) != len(pairs):
            raise ValueError(f"{name} has {len(pairs.align_dataset)} alignments for {len(pairs)} pairs of sentences")
        self.tgt_sizes = pairs.tgt_sizes + 1
        if long := int((self.tgt_sizes >= LENGTHS).sum()):
            logger.warning(
                "%d target(s) of %s are longer than %d words: without --pred-length-offset the length prediction takes "
                "them for sentences of that length, and never predicts longer ones",
                long,
                name,
                LENGTHS - 3,
            )

    def collater(self, samples: list[dict[str, Any]], pad_to_length: dict[str, int] | None = None) -> dict[str, Any]:
        """As fairseq's, with ``fertilities`` in place of ``alignments``.

        Raises:
            ValueError: for an alignment of words that the sentence does not have, naming the sentence.
        """
        pairs = [{name: value for name, value in sample.items() if name != "alignment"} for sample in samples]
        batch = super().collater(pairs, pad_to_length)
        if self.align_dataset is None or not samples:
            return batch
        given = {sample["id"]: self._fertilities(sample) for sample in samples}
        src_tokens = batch["net_input"]["src_tokens"]
        counts = torch.zeros_like(src_tokens)
        counts[src_tokens.ne(self.src_dict.pad())] = torch.cat([given[i] for i in batch["id"].tolist()])
        return {**batch, "fertilities": counts}

    def _fertilities(self, sample: dict[str, Any]) -> Tensor:
        """Those of a sentence's source (S,), with start and end symbol."""
        source, target = (int(sample[side].ne(self.src_dict.pad()).sum()) for side in ("source", "target"))
        if source == 2:  # the end symbol stands for everything
            return torch.tensor([1, target])
        try:
            counts = fertilities(sample["alignment"].view(-1, 2).numpy(), source - 2, target - 1)
        except ValueError as error:
            raise ValueError(f"{self.name}, sentence {sample['id']}: {error}") from None
        return torch.tensor([1, *counts, 1])
