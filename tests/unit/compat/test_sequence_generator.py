"""fairseq's own search blocks n-grams on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toy
from fairseq.sequence_generator import SequenceGenerator

from amlp_fairseq.compat.sequence_generator import RepeatedNgrams


def repeated(words: list[int], size: int) -> bool:
    ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("beam", [1, 4])
def test_no_output_has_an_ngram_twice(size: int, beam: int) -> None:
    task = toy.task(6)
    model, sample = toy.stock_transformer(task), toy.batch(toy.random_sources(8, 6, 0), task.src_dict)

    def outputs(**options: Any) -> list[list[int]]:
        search = SequenceGenerator([model], task.tgt_dict, beam_size=beam, max_len_b=14, min_len=12, **options)
        return [found["tokens"].tolist()[:-1] for found, *_ in search.generate([model], sample)]

    assert any(repeated(words, size) for words in outputs())
    assert not any(repeated(words, size) for words in outputs(no_repeat_ngram_size=size))


def test_what_would_repeat_is_forbidden_and_nothing_else() -> None:
    """Behind ``</s> 7 8 9 7 8`` only 9 would repeat a trigram, behind ``</s> 7 8 9 8 7`` nothing."""
    buffer = torch.tensor([[2, 7, 8, 9, 7, 8, 1, 1, 1], [2, 7, 8, 9, 8, 7, 1, 1, 1]])
    lprobs = RepeatedNgrams(3, use_extension=False)(buffer, torch.zeros(2, 12), 1, 2, 5)
    assert lprobs.isinf().nonzero().tolist() == [[0, 9]]


def test_a_generator_can_be_compiled() -> None:
    """As fairseq's test_sequence_generator.py does."""
    task = toy.task(6)
    search = SequenceGenerator([toy.stock_transformer(task)], task.tgt_dict, beam_size=2, no_repeat_ngram_size=2)
    assert torch.jit.script(search) is not None
