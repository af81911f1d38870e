"""Dataset of language pairs whose batches also contain the target in generation order. Notation: docs/glossary.md."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import BaseWrapperDataset, LanguagePairDataset
from torch import Tensor

from amlp_fairseq.compat.internals import data_utils
from amlp_fairseq.ops.generation_order import GenerationOrder


class InterleavedPairDataset(BaseWrapperDataset):
    """Language-pair dataset whose batches also contain the target in generation order.

    ``target`` remains in reading order, as scoring, ``T-`` lines and ``--eval-bleu`` expect it. Added or replaced keys,
    for B sentences and L slots (the longest target, rounded up to whole steps):

    - ``target_interleaved`` (B, L): the words in generation order, the end symbol, padding;
    - ``net_input.prev_output_tokens`` (B, L): z start symbols, then the words in generation order, shifted by z.

    The decoder input of a sentence fills all slots of its last step, also the slots after the end symbol: in decoding a
    step always has z inputs, and the end symbol's slot attends to all z inputs (Eq. 4).

    Args:
        dataset: wrapped dataset, whose targets are padded on the right.
        order: generation order of the targets.

    Raises:
        ValueError: if targets are padded on the left; when collating, if a target has no end symbol.
    """

    def __init__(self, dataset: LanguagePairDataset, order: GenerationOrder) -> None:
        super().__init__(dataset)
        if dataset.left_pad_target:
            raise ValueError("--left-pad-target True is not supported: generation order starts at the left")
        self.order = order
        self.src, self.tgt = dataset.src, dataset.tgt  # fairseq-generate reads the text of raw ones

    def collater(self, samples: list[dict[str, Any]], pad_to_length: dict[str, int] | None = None) -> dict[str, Any]:
        batch = self.dataset.collater(samples, pad_to_length)
        if not batch or batch.get("target") is None:
            return batch
        pairs = [self._slots(row) for row in batch["target"]]
        pad, multiple = self.dataset.tgt_dict.pad(), self.dataset.pad_to_multiple
        batch["net_input"]["prev_output_tokens"], batch["target_interleaved"] = (
            data_utils.collate_tokens(list(rows), pad, pad_to_multiple=multiple) for rows in zip(*pairs, strict=True)
        )
        return batch

    def _slots(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Decoder input and target of one sentence in generation order, both of length ⌈(n+1)/z⌉·z."""
        pad, eos, z = self.dataset.tgt_dict.pad(), self.dataset.tgt_dict.eos(), self.order.words_per_step
        target = target[target.ne(pad)]
        if target.numel() == 0 or target[-1] != eos:
            raise ValueError(f"a target must end in the end symbol {eos}, not {target.tolist()}")
        words = self.order.interleave(target[:-1])
        length = self.order.padded_length(len(target))
        expected = torch.cat([words, target[-1:], target.new_full((length - len(target),), pad)])
        return torch.cat([target.new_full((z,), eos), words[: length - z]]), expected
