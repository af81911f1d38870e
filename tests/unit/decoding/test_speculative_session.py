"""Several words per call, some removed again, against the model's full forward."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import toy

from amlp_fairseq.decoding.inference_model import InferenceModel

EOS = 2
CONVOLUTION = {"decoder_self_attention_type": "dynamic_conv", "decoder_kernel_size_list": [3, 7]}


def autoregressive(**options: Any) -> tuple[Any, Any]:
    task = toy.task(num_directions=1)
    return task, toy.model(task, **options)


@pytest.mark.parametrize("seed", range(4))
def test_any_chunks_with_words_taken_back_give_the_logits_of_the_whole_sentence(seed: int) -> None:
    task, model = autoregressive()
    model.double()
    chance = random.Random(seed)
    net_input = toy.batch(toy.random_sources(3, 12, seed), task.src_dict)["net_input"]
    words = torch.tensor([[EOS] + [chance.randrange(4, 16) for _ in range(59)] for _ in range(3)])
    with torch.no_grad():
        expected, extra = model(**net_input, prev_output_tokens=words)
    seen = extra["attn"][0]
    session = InferenceModel(model, None).begin_speculative(net_input["src_tokens"], net_input["src_lengths"])
    read = [0, 0, 0]
    while min(read) < 55:
        count = chance.randrange(1, 6)
        kept = [min(chance.randrange(count + 1), 55 - done) for done in read]  # of the words of this call
        fed = torch.full((3, count), 5)  # words that will be taken back
        for row, (done, right) in enumerate(zip(read, kept, strict=True)):
            fed[row, :right] = words[row, done : done + right]
        with torch.no_grad():
            logits, attention = session.verify(fed, need_attention=True)
        for row, (done, right) in enumerate(zip(read, kept, strict=True)):
            torch.testing.assert_close(logits[row, :right], expected[row, done : done + right], rtol=0, atol=1e-6)
            torch.testing.assert_close(attention[row, :right], seen[row, done : done + right], rtol=0, atol=1e-6)
        read = [done + right for done, right in zip(read, kept, strict=True)]
        session.truncate(read)


def test_rows_that_are_dropped_leave_the_others_as_they_are() -> None:
    task, model = autoregressive()
    model.double()
    net_input = toy.batch(toy.random_sources(4, 12), task.src_dict)["net_input"]
    words = torch.randint(4, 16, (4, 9), generator=torch.Generator().manual_seed(0))
    words[:, 0] = EOS
    with torch.no_grad():
        expected, _ = model(**net_input, prev_output_tokens=words)
        session = InferenceModel(model, None).begin_speculative(net_input["src_tokens"], net_input["src_lengths"])
        session.verify(words[:, :4])
        session.truncate([1, 2, 3, 4])
        session.reorder(torch.tensor([3, 1]))
        logits, _ = session.verify(torch.stack([words[3, 4:9], words[1, 2:7]]))
    torch.testing.assert_close(logits, torch.stack([expected[3, 4:9], expected[1, 2:7]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            CONVOLUTION,
            "--decoder-self-attention-type dynamic_conv",
        ),
        ({"decoder_cross_attention_type": "abc"}, "--decoder-cross-attention-type abc"),
    ],
)
def test_other_states_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    task, model = autoregressive(**options)
    net_input = toy.batch(toy.random_sources(1, 12), task.src_dict)["net_input"]
    with pytest.raises(ValueError, match=named):
        InferenceModel(model, None).begin_speculative(net_input["src_tokens"], net_input["src_lengths"])


def test_a_stock_decoder_is_refused_by_name() -> None:
    task = toy.task(num_directions=1)
    net_input = toy.batch(toy.random_sources(1, 12), task.src_dict)["net_input"]
    with pytest.raises(ValueError, match=r"needs a decoder of amlp_fairseq .* not TransformerDecoder"):
        InferenceModel(toy.stock_transformer(task), None).begin_speculative(*net_input.values())
