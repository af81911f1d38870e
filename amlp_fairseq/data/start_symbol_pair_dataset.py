"""Language pairs for non-autoregressive models, which read the start symbol on both sides."""

from __future__ import annotations

import logging

from fairseq.data import LanguagePairDataset, PrependTokenDataset

logger = logging.getLogger(__name__)

#: Lengths that fairseq's NAT models can predict, start and end included, without --pred-length-offset.
LENGTHS = 256


class StartSymbolPairDataset(LanguagePairDataset):
    """A language-pair dataset whose sources begin with the start symbol, and whose sizes count it on both sides.

    Targets do not contain it, because scoring, ``T-`` lines and ``--eval-bleu`` read them; their sizes count it,
    because the decoder reads it. Logs a warning if some targets are too long for the length prediction.

    Args:
        pairs: the dataset to start from; it is not changed.
        name: the dataset's name in the warning.
    """

    def __init__(self, pairs: LanguagePairDataset, name: str) -> None:
        self.__dict__.update(vars(pairs))
        self.src = PrependTokenDataset(pairs.src, pairs.src_dict.bos())
        self.src_sizes, self.sizes = pairs.src_sizes + 1, pairs.sizes + 1
        if pairs.tgt is None:
            return
        self.tgt_sizes = pairs.tgt_sizes + 1
        if long := int((self.tgt_sizes >= LENGTHS).sum()):
            logger.warning(
                "%d target(s) of %s are longer than %d words: without --pred-length-offset the length prediction takes "
                "them for sentences of that length, and never predicts longer ones",
                long,
                name,
                LENGTHS - 3,
            )
