"""Changes of ``fairseq.utils``: ``--replace-unk``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from amlp_fairseq.compat.changes import Stock
from amlp_fairseq.compat.internals import data_utils
from amlp_fairseq.text.unknown_words import read_translations, replaced


def load_align_dict(stock: Stock, replace_unk: str | None) -> dict[str, str] | None:
    """Stock takes the flag without a file for the file ``"@@ "``."""
    return read_translations(replace_unk)


def post_process_prediction(
    stock: Stock,
    hypo_tokens: Tensor,
    src_str: str,
    alignment: Any,
    align_dict: Mapping[str, str] | None,
    tgt_dict: Dictionary,
    remove_bpe: str | None = None,
    extra_symbols_to_ignore: Any = None,
) -> tuple[Tensor, str, Any]:
    """Stock takes the pairs of an alignment for numbers of the source's words, and counts words that ``remove_bpe`` has
    put together."""
    others = (tgt_dict, remove_bpe, extra_symbols_to_ignore)
    if align_dict is None:
        result: tuple[Tensor, str, Any] = stock(hypo_tokens, src_str, alignment, None, *others)
        return result
    pieces = tgt_dict.string(hypo_tokens, None, extra_symbols_to_ignore=extra_symbols_to_ignore).split()
    if tgt_dict.unk_string() in pieces and not pairs(alignment):
        raise ValueError("--replace-unk: the search of this task has no alignments; amlp-fairseq translate has them")
    found = replaced(pieces, src_str.split(), pairs(alignment), align_dict)
    text = data_utils.post_process(" ".join(found), remove_bpe)
    return tgt_dict.encode_line(text, add_if_not_exist=True), text, alignment


def pairs(alignment: Sequence[Any] | None) -> list[tuple[int, int]]:
    """The pairs of an alignment: its own, or the word that each row of a soft one attends to most, which has a column
    for the end symbol, too."""
    if alignment is None or not len(alignment):
        return []
    if not isinstance(alignment[0][0], str):
        return [(int(source), int(target)) for source, target in alignment]
    rows = [[float(weight) for weight in row[:-1]] for row in alignment[:-1]]
    return [(row.index(max(row)), target) for target, row in enumerate(rows)]
