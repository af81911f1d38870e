"""Layers in TorchScript against the same layers called from Python, which other tests compare with the full forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import toy

from amlp_fairseq.decoding.packed_linear import pack
from amlp_fairseq.decoding.ready_model import ReadyModel
from amlp_fairseq.decoding.softmax_layers import softmax_layers

EOS = 2


def ready(decode_dtype: str | None, **options: Any) -> tuple[Any, ReadyModel]:
    task = toy.task(12, num_directions=2, words_per_direction=1)
    return task, ReadyModel(toy.model(task, **options), decode_dtype)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("decode_dtype", [None, "int8", "bfloat16"])
@torch.inference_mode()
def test_both_give_the_same(decode_dtype: str | None, norm_first: bool) -> None:
    """Steps of a beam whose rows branch, over sources with padding, until the buffers grow."""
    task, model = ready(decode_dtype, decoder_normalize_before=norm_first)
    scripted, generator = model.decoder.scripted, torch.Generator().manual_seed(1)
    assert scripted is not None
    net_input = toy.batch(toy.random_sources(3, 12), task.src_dict)["net_input"]
    sessions = [model.begin(**net_input, beam=2) for _ in range(2)]
    words = torch.full((6, 2), EOS)
    for _ in range(36):
        model.decoder.scripted = scripted
        found, _ = sessions[0].step(words)
        model.decoder.scripted = None
        expected, _ = sessions[1].step(words)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        rows = torch.arange(0, 6, 2).repeat_interleave(2) + torch.randint(2, (6,), generator=generator)
        for session in sessions:
            session.reorder(rows)
        words = torch.randint(4, 16, (6, 2), generator=generator)


@torch.inference_mode()
def test_rows_that_stand_at_different_words() -> None:
    task = toy.task(12, num_directions=1)
    model = ReadyModel(toy.model(task), None)
    scripted, generator = model.decoder.scripted, torch.Generator().manual_seed(1)
    net_input = toy.batch(toy.random_sources(3, 12), task.src_dict)["net_input"]
    sessions = [model.begin_verification(**net_input) for _ in range(2)]
    words = torch.full((3, 4), EOS)
    for step in range(5):
        model.decoder.scripted = scripted
        found, _ = sessions[0].verify(words)
        model.decoder.scripted = None
        expected, _ = sessions[1].verify(words)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        for session in sessions:
            session.truncate([length - back for length, back in zip(session.lengths, (step % 3, 0, 2), strict=True)])
        words = torch.randint(4, 16, (3, 4), generator=generator)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_self_attention_type": "average"},
        {"decoder_cross_attention_type": "linear"},
        {"activation_fn": "gelu"},
    ],
)
def test_other_layers_are_called_from_python(options: dict[str, Any]) -> None:
    assert ready(None, **options)[1].decoder.scripted is None


def test_maps_that_are_not_scripted_are_called_from_python() -> None:
    """As on CUDA."""
    layers = ready(None)[1].decoder.layers
    assert softmax_layers(layers) is not None
    layers[1].fc2 = pack(torch.eye(16), torch.zeros(16), "float16")
    assert softmax_layers(layers) is None
