"""Fused layers, in C++ or TorchScript, against the same layers called from Python, which other tests compare with the
full forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import toy
from pairwise import pairwise
from tolerance import measured

from amlp_fairseq.decoding import fused_layers
from amlp_fairseq.decoding import inference_nat as inference_nat_module
from amlp_fairseq.decoding.fused_layers import decoder_layers
from amlp_fairseq.decoding.inference_encoder import inference_encoder
from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.decoding.inference_nat import inference_nat
from amlp_fairseq.decoding.packed_linear import pack, with_packed_linears

EOS = 2


def in_cpp(operators: str, decode_dtype: str | None) -> bool:
    """True if maps are in C++: int8 ones only on processors with VNNI."""
    if operators != "C++" or decode_dtype == "bfloat16":
        return False
    return decode_dtype is None or bool(torch.ops.amlp_fairseq.has_int8())


def is_fused(decode_dtype: str | None) -> bool:
    """True if layers with softmax attention are fused: in bfloat16 only where oneDNN has it."""
    return decode_dtype != "bfloat16" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


pytestmark = pytest.mark.usefixtures("operators")
BOTH = ["C++", "PyTorch"]


def build(**options: Any) -> tuple[Any, Any]:
    task = toy.task(12, num_directions=2, words_per_direction=1)
    return task, toy.model(task, **options)


def prepared(decode_dtype: str | None, **options: Any) -> tuple[Any, InferenceModel]:
    task, model = build(**options)
    return task, InferenceModel(model, decode_dtype)


def allowed(task: Any, model: Any) -> float:
    """Tolerance between logits of two implementations of a model in float32."""
    net_input = toy.batch(toy.random_sources(3, 12), task.src_dict)["net_input"]
    words = torch.randint(4, 16, (3, 36), generator=torch.Generator().manual_seed(1))
    return measured(model, lambda either: either(**net_input, prev_output_tokens=words)[0])


def allowed_in(task: Any, encoder: Any) -> float:
    """Tolerance between outputs of an encoder."""
    net_input = toy.batch(toy.random_sources(3, 12), task.src_dict)["net_input"]
    return measured(encoder, lambda either: either.forward_torchscript(net_input)["encoder_out"][0])


def compare_steps(task: Any, model: InferenceModel, counts: list[int], tolerance: float) -> None:
    """Logits of a beam whose rows branch, over padded sources, with ``count`` words of each row per call."""
    fused, generator = model.decoder.fused_layers, torch.Generator().manual_seed(1)
    net_input = toy.batch(toy.random_sources(3, 12), task.src_dict)["net_input"]
    sessions = [model.begin(**net_input, beam=2) for _ in range(2)]
    words = torch.full((6, counts[0]), EOS)
    for count in [*counts[1:], 2]:
        model.decoder.fused_layers = fused
        actual, _ = sessions[0].step(words)
        model.decoder.fused_layers = None
        expected, _ = sessions[1].step(words)
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)
        rows = torch.arange(0, 6, 2).repeat_interleave(2) + torch.randint(2, (6,), generator=generator)
        for session in sessions:
            session.reorder(rows)
        words = torch.randint(4, 16, (6, count), generator=generator)


@pytest.mark.parametrize(
    ("operators", "decode_dtype", "norm_first", "width"),
    pairwise(BOTH, [None, "int8", "bfloat16"], [False, True], [16, 40, 512]),
    indirect=["operators"],
)
@torch.inference_mode()
def test_both_give_the_same(decode_dtype: str | None, norm_first: bool, width: int) -> None:
    """Steps of a beam whose rows branch, over padded sources, until the buffers grow; layers with few weights, in sizes
    that are no multiple of a vector, and with many. One of many inputs may be rounded to another int8 value."""
    widths = {"encoder_embed_dim": width, "decoder_embed_dim": width}
    task, model = build(decoder_normalize_before=norm_first, **widths)
    tolerance = (0.1 if toy.VNNI else 0.2) if decode_dtype == "int8" else allowed(task, model)
    model = InferenceModel(model, decode_dtype)
    assert (model.decoder.fused_layers is not None) == is_fused(decode_dtype)
    compare_steps(task, model, [2] * 36, tolerance)


KERNELS = {"decoder_kernel_size_list": [3, 5], "decoder_conv_heads": 4}


OTHER_SELF_ATTENTIONS: list[dict[str, Any]] = [
    {"decoder_self_attention_type": "average"},
    {"decoder_self_attention_type": "average", "no_average_ffn": True},
    {"decoder_self_attention_type": "average", "no_average_gate": True},
    {"decoder_self_attention_type": "dynamic_conv", **KERNELS},
    {"decoder_self_attention_type": "dynamic_conv", **KERNELS, "decoder_glu": 0, "weight_normalization": "none"},
    {"decoder_self_attention_type": "dynamic_conv", "decoder_kernel_size_list": [1]},
    {"decoder_self_attention_type": "light_conv", **KERNELS, "decoder_conv_dim": 24},
    {"decoder_self_attention_type": "light_conv", **KERNELS, "weight_normalization": "abs-l1"},
]


@pytest.mark.parametrize(
    ("options", "operators", "decode_dtype", "norm_first"),
    pairwise(OTHER_SELF_ATTENTIONS, BOTH, [None, "int8"], [False, True]),
    indirect=["operators"],
)
@torch.inference_mode()
def test_other_self_attentions_in_cpp(
    decode_dtype: str | None, norm_first: bool, options: dict[str, Any], operators: str
) -> None:
    """One step per call, and two. An input may be rounded to another int8 value."""
    task, model = build(decoder_normalize_before=norm_first, **options)
    tolerance = 0.1 if decode_dtype == "int8" else allowed(task, model)
    model = InferenceModel(model, decode_dtype)
    assert (model.decoder.fused_layers is not None) == in_cpp(operators, decode_dtype)
    compare_steps(task, model, [2, 2, 4] * 4, tolerance)


@torch.inference_mode()
def test_rows_that_stand_at_different_words() -> None:
    task = toy.task(12, num_directions=1)
    model = toy.model(task)
    tolerance, model = allowed(task, model), InferenceModel(model, None)
    fused, generator = model.decoder.fused_layers, torch.Generator().manual_seed(1)
    net_input = toy.batch(toy.random_sources(3, 12), task.src_dict)["net_input"]
    sessions = [model.begin_speculative(**net_input) for _ in range(2)]
    words = torch.full((3, 4), EOS)
    for step in range(5):
        model.decoder.fused_layers = fused
        actual, _ = sessions[0].verify(words)
        model.decoder.fused_layers = None
        expected, _ = sessions[1].verify(words)
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)
        for session in sessions:
            session.truncate([length - back for length, back in zip(session.lengths, (step % 3, 0, 2), strict=True)])
        words = torch.randint(4, 16, (3, 4), generator=generator)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_self_attention_type": "dynamic_conv", "weight_normalization": "tanh", **KERNELS},
        {"decoder_self_attention_type": "average", "decoder_cross_attention_type": "linear"},
        {"decoder_cross_attention_type": "linear"},
        {"activation_fn": "gelu"},
    ],
)
def test_other_layers_are_called_from_python(options: dict[str, Any]) -> None:
    assert prepared(None, **options)[1].decoder.fused_layers is None


def test_maps_that_are_not_scripted_are_called_from_python() -> None:
    """As on CUDA."""
    layers = prepared(None)[1].decoder.layers
    assert decoder_layers(layers) is not None
    layers[1].fc2 = pack(torch.eye(16), torch.zeros(16), "float16")
    assert decoder_layers(layers) is None


@pytest.mark.parametrize(
    ("operators", "decode_dtype", "norm_first", "longest"),
    pairwise(BOTH, [None, "int8", "bfloat16"], [False, True], [8, 80]),
    indirect=["operators"],
)
@torch.inference_mode()
def test_encoder(longest: int, decode_dtype: str | None, norm_first: bool) -> None:
    """Against the layers called from Python and, where weights keep their type, the model's own; with padding and
    without."""
    task = toy.task(12, num_directions=2)
    encoder = toy.model(task, encoder_normalize_before=norm_first, encoder_layers=3).encoder.eval()
    tolerance = allowed_in(task, encoder)
    inference_copy, packed = inference_encoder(encoder, decode_dtype), with_packed_linears(encoder, decode_dtype)
    assert (len(inference_copy.layers), len(encoder.layers)) == (1 if is_fused(decode_dtype) else 3, 3)
    for sources in (toy.random_sources(3, 12), torch.randint(4, 16, (2, longest)).tolist()):
        net_input = toy.batch(sources, task.src_dict)["net_input"]
        actual = inference_copy.forward_torchscript(net_input)
        for other in (packed, encoder) if decode_dtype is None else (packed,):
            expected = other.forward_torchscript(net_input)
            assert torch.equal(actual["encoder_padding_mask"][0], expected["encoder_padding_mask"][0])
            words = ~actual["encoder_padding_mask"][0].t()
            torch.testing.assert_close(
                actual["encoder_out"][0][words], expected["encoder_out"][0][words], atol=tolerance, rtol=0
            )


LINEAR_SELF_ATTENTIONS = [{"decoder_self_attention_type": name} for name in ("abc", "amlp_cov", "amlp_pquery")]


@pytest.mark.parametrize(
    ("options", "operators", "decode_dtype", "norm_first"),
    pairwise([{}, *OTHER_SELF_ATTENTIONS, *LINEAR_SELF_ATTENTIONS], BOTH, [None, "int8"], [False, True]),
    indirect=["operators"],
)
@torch.inference_mode()
def test_encoders_with_other_self_attentions(
    decode_dtype: str | None, norm_first: bool, options: dict[str, Any], operators: str
) -> None:
    """In C++; with and without padding, and sentences shorter than a kernel."""
    options = {name.replace("decoder", "encoder"): value for name, value in options.items()}
    task = toy.task(12, num_directions=2)
    encoder = toy.model(task, encoder_normalize_before=norm_first, **options).encoder.eval()
    inference_copy, packed = inference_encoder(encoder, decode_dtype), with_packed_linears(encoder, decode_dtype)
    assert len(inference_copy.layers) == (1 if in_cpp(operators, decode_dtype) or not options else 2)
    tolerance = 0.1 if decode_dtype == "int8" else allowed_in(task, encoder)
    for sources in (
        toy.random_sources(3, 12),
        torch.randint(4, 16, (2, 3)).tolist(),
        torch.randint(4, 16, (2, 20)).tolist(),
    ):
        net_input = toy.batch(sources, task.src_dict)["net_input"]
        actual, expected = inference_copy.forward_torchscript(net_input), packed.forward_torchscript(net_input)
        words = ~actual["encoder_padding_mask"][0].t()
        torch.testing.assert_close(
            actual["encoder_out"][0][words], expected["encoder_out"][0][words], atol=tolerance, rtol=0
        )


@pytest.mark.parametrize("options", [{"encoder_self_attention_type": "linear"}, {"activation_fn": "gelu"}])
def test_other_encoders_keep_their_layers(options: dict[str, Any]) -> None:
    assert len(prepared(None, encoder_layers=3, **options)[1].encoder.layers) == 3


def test_an_encoder_that_drops_out_keeps_its_layers() -> None:
    """``--retain-dropout``."""
    encoder = toy.model(toy.task(12, num_directions=1), encoder_layers=3).encoder
    encoder.layers[1].dropout_module.apply_during_inference = True
    assert len(inference_encoder(encoder, None).layers) == 3


def passes(encoder: Any) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Targets and the encoder's outputs for several passes over each of two sources, with padding in both."""
    words, generator = toy.dictionary(12), torch.Generator().manual_seed(0)
    for seed in (0, 1):
        net_input = toy.batch([[words.bos(), *each] for each in toy.random_sources(3, 12, seed)], words)["net_input"]
        encoder_out = encoder(net_input["src_tokens"], net_input["src_lengths"])
        for longest in (6, 12):
            tokens = torch.randint(4, len(words), (3, longest), generator=generator)
            tokens[1, longest // 2 :] = words.pad()
            yield tokens, encoder_out


def logits(model: Any, tokens: torch.Tensor, encoder_out: dict[str, Any]) -> torch.Tensor:
    actual = model.decoder(normalize=False, prev_output_tokens=tokens, encoder_out=encoder_out)
    return actual[tokens.ne(toy.dictionary(12).pad())]


def compare_passes(inference_copy: Any, others: list[Any], tolerance: float) -> None:
    for tokens, encoder_out in passes(others[-1].encoder):
        actual = logits(inference_copy, tokens, encoder_out)
        for other in others:
            torch.testing.assert_close(actual, logits(other, tokens, encoder_out), atol=tolerance, rtol=0)


def rounding(model: Any) -> float:
    """Tolerance between logits of two implementations of a decoder in float32."""
    encoded = list(passes(model.encoder))

    def run(either: Any) -> torch.Tensor:
        dtype = next(either.parameters()).dtype
        return torch.cat(
            [
                logits(either, tokens, out | {"encoder_out": [out["encoder_out"][0].to(dtype)]})
                for tokens, out in encoded
            ]
        )

    return measured(model, run)


@pytest.mark.parametrize(
    ("operators", "decode_dtype", "norm_first", "no_repos"),
    pairwise(BOTH, [None, "int8", "bfloat16"], [False, True], [False, True]),
    indirect=["operators"],
)
@torch.inference_mode()
def test_non_autoregressive_decoder(
    decode_dtype: str | None, norm_first: bool, no_repos: bool, operators: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"decoder_normalize_before": norm_first, "no_repos": no_repos}
    model = toy.cmlmc(**options)
    monkeypatch.setattr(fused_layers, "SMALL_QUERY", 8)
    inference_copy = inference_nat(model, decode_dtype)
    monkeypatch.setattr(inference_nat_module, "join_decoder_layers", lambda *arguments: False)
    packed = inference_nat(model, decode_dtype)
    layers = 1 if is_fused(decode_dtype) else 2
    assert (len(inference_copy.decoder.layers), len(packed.decoder.layers), len(model.decoder.layers)) == (layers, 2, 2)
    tolerance = 0.1 if decode_dtype == "int8" else rounding(model)  # an input, to another of int8's steps
    compare_passes(inference_copy, [packed, model] if decode_dtype is None else [packed], tolerance)


def everywhere(attention: str, **options: Any) -> dict[str, Any]:
    return {"decoder_self_attention_type": attention, "decoder_cross_attention_type": attention, **options}


LINEAR_ATTENTIONS: list[dict[str, Any]] = [
    everywhere("abc"),
    {"decoder_cross_attention_type": "abc", "attention_inner_dim": 5},
    everywhere("amlp_cov"),
    everywhere("amlp_cov", amlp_published_contraction=True, no_amlp_output_norm=True),
    everywhere("amlp_cov", no_amlp_temperature=True, no_amlp_normalize=True, amlp_scale="none"),
    everywhere("amlp_pquery"),
    everywhere("amlp_pquery", amlp_scale="all", amlp_ema_bias_correction=True, amlp_ema_beta=0.5),
    everywhere("amlp_pquery", no_amlp_output_norm=True, attention_inner_dim=19),
    {"decoder_self_attention_type": "amlp_pquery", "decoder_cross_attention_type": "amlp_cov"},
    {"decoder_self_attention_type": "amlp_cov"},
    everywhere("abc", repos_attention_type="abc"),
    everywhere("amlp_pquery", repos_attention_type="abc", attention_inner_dim=19),
]


def with_random_parameters(model: Any) -> Any:
    """Set temperatures and norms other than 1, and biases other than 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("temperature", "attn.norm.weight")):
                parameter.uniform_(0.5, 3)
            elif name.endswith("bias"):
                parameter.normal_(std=0.5)
    return model


@pytest.mark.parametrize(
    ("options", "operators", "decode_dtype", "norm_first", "no_repos"),
    pairwise(LINEAR_ATTENTIONS, BOTH, [None, "int8"], [False, True], [False, True]),
    indirect=["operators"],
)
@torch.inference_mode()
def test_non_autoregressive_decoder_with_attentions_of_linear_cost(
    no_repos: bool,
    decode_dtype: str | None,
    norm_first: bool,
    options: dict[str, Any],
    operators: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against attentions in Python, which test_formulas.py compares with the papers' equations."""
    model = with_random_parameters(toy.cmlmc(decoder_normalize_before=norm_first, no_repos=no_repos, **options))
    inference_copy = inference_nat(model, decode_dtype)
    monkeypatch.setattr(inference_nat_module, "join_decoder_layers", lambda *arguments: False)
    packed = inference_nat(model, decode_dtype)
    layers = 1 if in_cpp(operators, decode_dtype) else 2
    assert (len(inference_copy.decoder.layers), len(packed.decoder.layers)) == (layers, 2)
    tolerance = 0.2 if decode_dtype else rounding(model)
    compare_passes(inference_copy, [packed, model] if decode_dtype is None else [packed], tolerance)


@pytest.mark.parametrize("operators", ["C++"], indirect=True)  # PyTorch may add in another order for other rows
@pytest.mark.parametrize("options", LINEAR_ATTENTIONS)
@torch.inference_mode()
def test_a_sentence_with_attentions_of_linear_cost_depends_on_that_sentence_alone(options: dict[str, Any]) -> None:
    """Equal bits in C++, in any batch."""
    model, words = inference_nat(toy.cmlmc(**options), None), toy.dictionary(12)
    sources = torch.randn(9, 3, 16)
    padding = torch.arange(9) >= torch.tensor([[9], [4], [6]])
    tokens = torch.randint(4, len(words), (3, 12)).masked_fill(torch.arange(12) >= torch.tensor([[5], [12], [8]]), 1)

    def logits(some: slice, source: int, target: int) -> torch.Tensor:
        encoder_out = {"encoder_out": [sources[:source, some]], "encoder_padding_mask": [padding[some, :source]]}
        return model.decoder(normalize=False, prev_output_tokens=tokens[some, :target], encoder_out=encoder_out)

    together = logits(slice(None), 9, 12)
    for sentence, (source, target) in enumerate([(9, 5), (4, 12), (6, 8)]):
        alone = logits(slice(sentence, sentence + 1), source, target)
        assert torch.equal(together[sentence, :target], alone[0])


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_self_attention_type": "linear"},
        {"decoder_cross_attention_type": "linear"},
        {"decoder_self_attention_type": "amlp_cov", "amlp_activation": "relu"},
        {"repos_attention_type": "amlp_cov"},
        {"repos_attention_type": "average"},
        {"activation_fn": "gelu"},
    ],
)
def test_other_non_autoregressive_decoders_keep_their_layers(options: dict[str, Any]) -> None:
    assert len(inference_nat(toy.cmlmc(**options), None).decoder.layers) == 2


def test_a_non_autoregressive_decoder_that_drops_out_keeps_its_layers() -> None:
    model = toy.cmlmc()
    model.decoder.layers[1].dropout_module.apply_during_inference = True
    assert len(inference_nat(model, None).decoder.layers) == 2
