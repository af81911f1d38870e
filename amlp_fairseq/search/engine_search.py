"""The multi-word beam search in the C++ engine, for fairseq's commands on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from fairseq import utils

from amlp_fairseq.engine import model as engine
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.search.options import GENERATION_ARGUMENTS, SearchOptions
from amlp_fairseq.text.dictionary import PAD

#: Options that the engine has under the same names.
SAME = ("max_len_a", "max_len_b", "min_len", "unk_penalty", "temperature")
#: All options that the engine has.
SUPPORTED = {
    *SAME,
    *("beam_size", "normalize_scores", "len_penalty", "length_penalty_kind", "words_after_end", "finished"),
    *("no_repeat_ngram_size", "deduplicate_ngram_size", "repetition_penalty", "alignment", "decode_dtype"),
}


def unsupported(options: SearchOptions) -> dict[str, bool]:
    """The options that the engine does not have, each with True if it is not at its default."""
    return {
        f"--{GENERATION_ARGUMENTS.get(option.name, option.name).replace('_', '-')}": getattr(options, option.name)
        != option.default
        for option in fields(SearchOptions)
        if option.name not in SUPPORTED
    }


def search(
    model: engine.Model,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    propose: engine.Propose | None = None,
    draft_words: int = 0,
    prefixes: Sequence[engine.Prefix] = (),
    shortlist: Shortlist | None = None,
) -> list[list[dict[str, Any]]]:
    """The hypotheses of sources, as ``MultiwordBeamSearch.generate`` returns them.

    Args:
        model: the model.
        sources: with the end symbol, without padding.
        options: none that is :func:`unsupported`.
        propose: see ``engine.Model.search``.
        draft_words, prefixes, shortlist: see there.
    """
    settings = engine.SearchOptions(
        beam=options.beam_size,
        normalize=options.normalize_scores,
        length_penalty=options.len_penalty,
        gnmt=options.length_penalty_kind == "gnmt",
        count_after_end=options.words_after_end == "count",
        keep_all=options.finished == "all",
        no_repeat_ngram=max(options.no_repeat_ngram_size, 0),
        deduplicate=max(options.deduplicate_ngram_size, 0),
        repetition_penalty=options.repetition_penalty,
        align=options.alignment is not None,
        **{name: getattr(options, name) for name in SAME},
    )
    found = model.search(
        sources, settings, torch.get_num_threads(), propose, draft_words, prefixes, shortlist=shortlist
    )
    return [
        [_hypothesis(each, torch.tensor(source), options.alignment) for each in hypotheses]
        for source, hypotheses in zip(sources, found, strict=True)
    ]


def _hypothesis(found: engine.Hypothesis, source: torch.Tensor, alignment: str | None) -> dict[str, Any]:
    tokens, attention = torch.tensor([*found.tokens, engine.EOS]), torch.tensor(found.attention)
    pairs: Any = torch.empty(0) if alignment is None else found.alignment
    if alignment == "soft":
        pairs = utils.extract_soft_alignment(attention, source, tokens, PAD, engine.EOS)
    return {
        "tokens": tokens,
        "score": torch.tensor(found.score),
        "positional_scores": torch.tensor(found.token_scores),
        "attention": None if alignment is None else attention.t(),
        "alignment": pairs,
        "steps": found.steps,
    }
