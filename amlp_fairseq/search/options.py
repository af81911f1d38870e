"""Options of the multi-word beam search. Notation: docs/glossary.md."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from fairseq.dataclass import FairseqDataclass

from amlp_fairseq.compat.internals import GenerationConfig

LENGTH_PENALTIES = ("fairseq", "gnmt")
WORDS_AFTER_END = ("ignore", "count")
FINISHED: tuple[Literal["best", "all"], ...] = ("best", "all")

#: Names of fairseq's generation arguments by the options that they set.
GENERATION_ARGUMENTS = {
    "beam_size": "beam",
    "max_len_a": "max_len_a",
    "max_len_b": "max_len_b",
    "min_len": "min_len",
    "len_penalty": "lenpen",
    "unk_penalty": "unkpen",
    "temperature": "temperature",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "alignment": "print_alignment",
}
#: Names in the task's config by the options that they set.
TASK_OPTIONS = {
    "length_penalty_kind": "length_penalty",
    "words_after_end": "words_after_end",
    "finished": "finished",
    "deduplicate_ngram_size": "deduplicate_ngrams",
    "repetition_penalty": "repetition_penalty",
    "decode_dtype": "decode_dtype",
    "cuda_graphs": "cuda_graphs",
}


#: 1000**10 still fits in float32.
MAX_LENPEN = 10


@dataclass(frozen=True)
class SearchOptions:
    """The settings of the multi-word beam search.

    Attributes:
        beam_size: B, hypotheses kept and at most returned per sentence.
        max_len_a: with ``max_len_b``: at most ``a·S + b`` words for a source of S tokens, its end symbol included.
        max_len_b: see ``max_len_a``.
        min_len: minimum number of words; ``z`` forbids the end symbol in the first step, as the authors' search does.
        normalize_scores: divide scores by the length penalty.
        len_penalty: exponent α of the length penalty.
        length_penalty_kind: ``fairseq`` or ``gnmt``, see :func:`search_steps.length_penalty`.
        unk_penalty: subtracted from the unknown word's log-probability.
        temperature: divides the logits.
        no_repeat_ngram_size: no n-gram of this size twice in an output; 0 for no such rule.
        words_after_end: words after the end symbol in its step: ``ignore`` them, or ``count`` them in the score and in
            the length that divides it.
        finished: hypotheses to keep when they end: those among the ``best`` B of their step, with 2B continuations of
            each hypothesis, as in fairseq; or ``all``, with B continuations, as in Algorithm 1.
        deduplicate_ngram_size: remove immediate repetitions of up to this many words from outputs; 0 for none.
        repetition_penalty: divides the logits of words that have been written before the step; where they are negative
            it multiplies them.
        alignment: None, or ``hard`` or ``soft`` as in ``--print-alignment``.
        decode_dtype: the weights' type when decoding, one of ``packed_linear.DECODE_DTYPES``; None: unchanged.
        cuda_graphs: capture the steps of models that cannot be trained any more, see ``cuda_graph_decoding.py``.

    Raises:
        ValueError: for a value outside its range, naming the command line option.
    """

    beam_size: int = 5
    max_len_a: float = 0.0
    max_len_b: int = 200
    min_len: int = 1
    normalize_scores: bool = True
    len_penalty: float = 1.0
    length_penalty_kind: str = "fairseq"
    unk_penalty: float = 0.0
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    words_after_end: str = "ignore"
    finished: str = "best"
    deduplicate_ngram_size: int = 0
    repetition_penalty: float = 1.0
    alignment: str | None = None
    decode_dtype: str | None = None
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ValueError(f"--beam must be at least 1, not {self.beam_size}")
        if self.temperature <= 0:
            raise ValueError(f"--temperature must be greater than 0, not {self.temperature}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"--repetition-penalty must be greater than 0 and finite, not {self.repetition_penalty}")
        if not abs(self.len_penalty) <= MAX_LENPEN:
            raise ValueError(f"--lenpen {self.len_penalty} must be between -{MAX_LENPEN} and {MAX_LENPEN}")
        for flag, value, choices in (
            ("--length-penalty", self.length_penalty_kind, LENGTH_PENALTIES),
            ("--words-after-end", self.words_after_end, WORDS_AFTER_END),
            ("--finished", self.finished, FINISHED),
        ):
            if value not in choices:
                raise ValueError(f"{flag} must be one of {', '.join(choices)}, not {value!r}")

    @classmethod
    def from_generation_args(
        cls, args: GenerationConfig | Namespace, cfg: FairseqDataclass | Namespace
    ) -> SearchOptions:
        """The options of fairseq's generation arguments and the task's config. ``--replace-unk`` needs alignments.

        Args:
            args: fairseq's ``GenerationConfig``, or a namespace with some of its fields; missing ones have defaults.
            cfg: the config of ``translation_interleaved``.

        Raises:
            ValueError: as the constructor.
        """
        options = {
            option: _plain(getattr(source, name))
            for source, names in ((args, GENERATION_ARGUMENTS), (cfg, TASK_OPTIONS))
            for option, name in names.items()
            if hasattr(source, name)
        }
        if getattr(args, "replace_unk", None) is not None:
            options["alignment"] = options.get("alignment") or "hard"
        return cls(normalize_scores=not getattr(args, "unnormalized", False), **options)


def _plain(value: object) -> Any:
    """The string of fairseq's ``ChoiceEnum``; any other value as it is."""
    return value.value if isinstance(value, Enum) else value
