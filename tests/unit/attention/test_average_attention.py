"""Average attention: three forms of the mean that agree, the layer by its equations, the model's size and search."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch
import toy
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from hypothesis import given, settings
from hypothesis import strategies as st
from test_registry import build, random, run
from torch import Tensor

from amlp_fairseq.models.average_attention import AANTransformerConfig
from amlp_fairseq.models.interleaved_decoder import IBDecoderConfig
from amlp_fairseq.models.light_conv import LightConvLMConfig
from amlp_fairseq.models.text_to_speech import FastSpeech2Config
from amlp_fairseq.ops.cumulative_mean import averaging_matrix, continue_mean, cumulative_mean

pytestmark = pytest.mark.usefixtures("float64")

ZERO = torch.zeros((), dtype=torch.float64)


def means(x: np.ndarray, step: int, keep: np.ndarray | None = None) -> np.ndarray:
    """By the definition, one position at a time; ``keep`` (T, B) says what counts."""
    result = np.zeros_like(x)
    keep = np.ones(x.shape[:2], dtype=bool) if keep is None else keep
    for i in range(x.shape[0]):
        for b in range(x.shape[1]):
            seen = [x[j, b] for j in range(x.shape[0]) if j // step <= i // step and keep[j, b]]
            if seen:
                result[i, b] = np.mean(seen, axis=0)
    return result


@pytest.mark.parametrize("step", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("length", [1, 6, 7, 20])
def test_the_three_forms_agree_with_the_definition(length: int, step: int) -> None:
    x = torch.randn(length, 2, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.from_numpy(means(x.numpy(), step))
    torch.testing.assert_close(cumulative_mean(x, step), expected)
    torch.testing.assert_close(continue_mean(x, ZERO, 0, step)[0], expected)
    matrix = averaging_matrix(length, step)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(length))
    torch.testing.assert_close(torch.einsum("ij,jbc->ibc", matrix, x), expected)


def test_the_posters_matrix() -> None:
    rows = [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4]
    torch.testing.assert_close(averaging_matrix(4), torch.tensor(rows))


@pytest.mark.parametrize("step", [1, 3])
def test_padding_does_not_count(step: int) -> None:
    x = torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(1))
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[0, :4] = padding[1, 5:] = True
    expected = torch.from_numpy(means(x.numpy(), step, ~padding.t().numpy()))
    torch.testing.assert_close(cumulative_mean(x, step, padding), expected)


@settings(deadline=None)
@given(chunks=st.lists(st.integers(1, 9), min_size=1, max_size=8), step=st.integers(1, 4))
def test_any_chunking_gives_the_same_means(chunks: list[int], step: int) -> None:
    x = torch.randn(step * sum(chunks), 2, 3, generator=torch.Generator().manual_seed(1))
    total, count, parts = ZERO, 0, []
    for chunk in x.split([step * n for n in chunks]):
        part, total = continue_mean(chunk, total, count, step)
        count += len(chunk)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts), cumulative_mean(x, step))
    torch.testing.assert_close(total, x.sum(dim=0))


@pytest.mark.parametrize("step", [1, 2])
def test_gradients_equal_finite_differences(step: int) -> None:
    x = torch.randn(5, 2, 3, requires_grad=True)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    assert torch.autograd.gradcheck(lambda x: cumulative_mean(x, step), x)
    assert torch.autograd.gradcheck(lambda x: cumulative_mean(x, step, padding), x)
    assert torch.autograd.gradcheck(lambda x: continue_mean(x, ZERO, 4, step), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_are_float32(dtype: torch.dtype) -> None:
    """A sum in half precision would stop growing: at 2048 in float16, at 256 in bfloat16."""
    x = torch.ones(5000, 1, 1, dtype=dtype)
    assert torch.equal(cumulative_mean(x), x)
    padding = torch.zeros(1, 5000, dtype=torch.bool)
    assert torch.equal(cumulative_mean(x, 1, padding), x)
    total, count = torch.zeros((), dtype=torch.float32), 0
    for chunk in x.split(1000):
        means_, total = continue_mean(chunk, total, count)
        count += 1000
        assert torch.equal(means_, chunk)
    assert total.dtype == torch.float32


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numbers(layer: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy() for name, value in layer.named_parameters()}


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("ffn", [True, False])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layer_by_its_equations(side: str, ffn: bool, gate: bool, step: int) -> None:
    layer = build("average", side, step, no_average_ffn=not ffn, no_average_gate=not gate)
    x = random(8)
    y = x.double().numpy()
    g = means(y, step if side == "decoder" else 8)
    w = numbers(layer)
    if ffn:
        hidden = np.maximum(g @ w["ffn.0.weight"].T + w["ffn.0.bias"], 0)
        g = hidden @ w["ffn.3.weight"].T + w["ffn.3.bias"]
    expected = g
    if gate:
        gates = sigmoid(np.concatenate([y, g], axis=2) @ w["gates.weight"].T + w["gates.bias"])
        d = y.shape[2]
        expected = gates[..., :d] * y + gates[..., d:] * g
    assert not (ffn or gate) or len(w) > 0
    torch.testing.assert_close(run(layer, x).double(), torch.from_numpy(expected))


def translation(words: int = 12) -> TranslationTask:
    return TranslationTask(TranslationConfig(), toy.dictionary(words), toy.dictionary(words))


def model(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {**toy.SIZES, "max_source_positions": 64, "max_target_positions": 64}
    return build_model(Namespace(arch="aan_transformer", **{**sizes, **options}), translation()).eval()


def decoder_inputs(length: int = 9) -> tuple[dict[str, Tensor], Tensor]:
    words = torch.randint(4, 16, (3, length - 1), generator=torch.Generator().manual_seed(3))
    tokens = torch.cat([torch.full((3, 1), 2), words], dim=1)
    return toy.batch(toy.random_sources(3, 12), toy.dictionary(12))["net_input"], tokens


@pytest.mark.parametrize("normalize_before", [False, True])
@pytest.mark.parametrize("ffn", [False, True])
def test_word_by_word_and_in_chunks_as_the_whole(ffn: bool, normalize_before: bool) -> None:
    norms = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    aan = model(no_average_ffn=not ffn, **norms)
    source, tokens = decoder_inputs()
    encoder_out = aan.encoder.forward_torchscript(source)
    whole, _ = aan.decoder(tokens, encoder_out=encoder_out)
    for ends in (range(1, 10), (4, 5, 9)):
        state: dict = {}
        parts = [aan.decoder(tokens[:, :n], encoder_out=encoder_out, incremental_state=state)[0] for n in ends]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("encoder", ["softmax", "average"])
def test_batch_and_padding_leave_no_trace(encoder: str) -> None:
    aan = model(encoder_self_attention_type=encoder)
    source, tokens = decoder_inputs()
    tokens[0, 4:] = 1
    together, _ = aan(**source, prev_output_tokens=tokens)
    n = int(source["src_lengths"][0])
    alone, _ = aan(source["src_tokens"][:1, -n:], source["src_lengths"][:1], tokens[:1, :4])
    torch.testing.assert_close(together[:1, :4], alone)


# Wu et al. 2019, Table 3, for 32,768 joint pieces. Without the FFN each layer has 8d² = 8.4M fewer.
PUBLISHED = {
    "AAN decoder, self-attention encoder": ({}, 260),
    "AAN decoder, AAN encoder": ({"encoder_self_attention_type": "average"}, 310),
    "AAN decoder without FFN": ({"no_average_ffn": True}, 260 - 6 * 8.4),
}


@pytest.mark.parametrize("row", PUBLISHED)
def test_parameters_as_published(row: str) -> None:
    options, published = PUBLISHED[row]
    args = Namespace(
        share_all_embeddings=True, max_source_positions=1024, max_target_positions=1024, **options, arch="x"
    )
    ARCH_CONFIG_REGISTRY["aan_transformer_wmt_en_de_big"](args)
    args.arch = "aan_transformer"
    task = translation()
    task.src_dict = task.tgt_dict = toy.dictionary(32764)
    with torch.device("meta"):
        count = sum(p.numel() for p in build_model(args, task).parameters()) / 1e6
    assert abs(count - published) < 1, count


@pytest.mark.parametrize("config", [AANTransformerConfig, IBDecoderConfig, LightConvLMConfig, FastSpeech2Config])
def test_checkpoints_of_the_first_versions_keep_their_ffn(config: Any) -> None:
    """They have ``average_ffn``; without it there is one, unless ``no_average_ffn`` says otherwise."""
    for args, ffn in (({"average_ffn": False}, False), ({"average_ffn": True}, True), ({}, True)):
        assert config.from_namespace(Namespace(**args)).no_average_ffn is not ffn
    assert config.from_namespace(Namespace(no_average_ffn=True)).no_average_ffn
