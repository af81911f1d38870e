"""Options of the search from fairseq's arguments and the task's config."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import toy
from fairseq.dataclass.configs import GenerationConfig

from amlp_fairseq.search.options import GENERATION_ARGUMENTS, TASK_OPTIONS, SearchOptions
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig

CONFIG = TranslationInterleavedConfig()


def test_the_defaults_are_fairseqs() -> None:
    for args in (Namespace(), GenerationConfig()):
        assert SearchOptions.from_generation_args(args, CONFIG) == SearchOptions()


def test_every_option_has_one_source() -> None:
    sources = [*GENERATION_ARGUMENTS, *TASK_OPTIONS, "normalize_scores"]
    assert sorted(sources) == sorted(field.name for field in fields(SearchOptions))
    assert all(hasattr(GenerationConfig(), name) for name in GENERATION_ARGUMENTS.values())
    assert all(hasattr(CONFIG, name) for name in TASK_OPTIONS.values())


def test_what_is_given_reaches_the_options() -> None:
    args = Namespace(
        beam=7,
        max_len_a=1.5,
        max_len_b=11,
        min_len=3,
        unnormalized=True,
        lenpen=0.6,
        unkpen=2.0,
        temperature=0.5,
        no_repeat_ngram_size=4,
        print_alignment="soft",
    )
    cfg = TranslationInterleavedConfig(
        length_penalty="gnmt",
        words_after_end="count",
        finished="all",
        deduplicate_ngrams=2,
        repetition_penalty=1.2,
        decode_dtype="int8",
        cuda_graphs=True,
    )
    assert SearchOptions.from_generation_args(args, cfg) == SearchOptions(
        beam_size=7,
        max_len_a=1.5,
        max_len_b=11,
        min_len=3,
        normalize_scores=False,
        len_penalty=0.6,
        length_penalty_kind="gnmt",
        unk_penalty=2.0,
        temperature=0.5,
        no_repeat_ngram_size=4,
        words_after_end="count",
        finished="all",
        deduplicate_ngram_size=2,
        repetition_penalty=1.2,
        alignment="soft",
        decode_dtype="int8",
        cuda_graphs=True,
    )


def test_choices_become_strings() -> None:
    """Values from the command line are members of fairseq's enumerations."""
    types = {field.name: field.type for field in fields(TranslationInterleavedConfig)}
    cfg = TranslationInterleavedConfig(
        length_penalty=types["length_penalty"].gnmt,
        words_after_end=types["words_after_end"].count,
        decode_dtype="int8",
    )
    options = SearchOptions.from_generation_args(Namespace(), cfg)
    assert (type(options.length_penalty_kind), type(options.words_after_end)) == (str, str)
    assert (options.length_penalty_kind, options.words_after_end) == ("gnmt", "count")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam_size": 0}, "--beam must be at least 1, not 0"),
        ({"temperature": 0.0}, r"--temperature must be greater than 0, not 0\.0"),
        ({"length_penalty_kind": "gmnt"}, "--length-penalty must be one of fairseq, gnmt, not 'gmnt'"),
        ({"words_after_end": "drop"}, "--words-after-end must be one of ignore, count, not 'drop'"),
        ({"finished": "some"}, "--finished must be one of best, all, not 'some'"),
    ],
)
def test_values_outside_their_range_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchOptions(**values)


def test_options_are_fixed() -> None:
    with pytest.raises(FrozenInstanceError):
        SearchOptions().beam_size = 2  # type: ignore[misc]


def test_the_task_gives_them_to_its_generator() -> None:
    task = toy.task(num_directions=1, length_penalty="gnmt", deduplicate_ngrams=3)
    options = task.build_generator([toy.model(task)], Namespace(beam=2, unnormalized=True)).options
    assert options == SearchOptions(2, normalize_scores=False, length_penalty_kind="gnmt", deduplicate_ngram_size=3)
