"""The decoding options of a ``Translator``, with their types. ``amlp-fairseq options`` explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from amlp_fairseq.model_folder.config import DISABLED
from amlp_fairseq.text.unknown_words import COPIES

#: Options whose value is a file or folder, on which translations depend, too.
PATHS = frozenset({"draft_path", "draft_file", "rescore_path", "shortlist", "replace_unk"})


class CallOptions(TypedDict, total=False):
    """Options that may differ from call to call."""

    beam: int
    nbest: int
    lenpen: float
    length_penalty: Literal["fairseq", "gnmt"]
    unnormalized: bool
    max_len_a: float
    max_len_b: int
    min_len: int
    match_source_len: bool
    unkpen: float
    temperature: float
    no_repeat_ngram_size: int
    deduplicate_ngrams: int
    repetition_penalty: float
    suppress: list[str]
    replace_unk: str | None
    words_after_end: Literal["ignore", "count"]
    finished: Literal["best", "all"]
    print_alignment: Literal["hard", "soft"]
    alternatives: bool
    min_alternative_prob: float
    no_early_stop: bool
    sampling: bool
    sampling_topk: int
    sampling_topp: float
    sampling_minp: float
    seed: int
    diverse_beam_groups: int
    diverse_beam_strength: float
    diversity_rate: float
    iter_decode_max_iter: int
    iter_decode_with_beam: int
    iter_decode_eos_penalty: float
    iter_decode_force_max_iter: bool
    retain_iter_history: bool


class Options(CallOptions, total=False):
    """All of them. These decide how the model is made ready, or what helps it."""

    decode_dtype: Literal["float32", "bfloat16", "float16", "int8"] | None
    cuda_graphs: bool
    rescore_path: str | None
    draft_path: str | None
    draft: Literal["source", "none"] | None
    draft_file: str | None
    draft_words: int
    shortlist: str | None
    retain_dropout: bool
    retain_dropout_modules: list[str] | None
    no_seed_provided: bool
    no_beamable_mm: bool


def files(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of ``PATHS`` that name a file or folder."""
    none = {**{name: (value,) for name, value in DISABLED.items()}, "replace_unk": COPIES}
    return {name: options[name] for name in PATHS & options.keys() if options[name] not in (None, *none[name])}
