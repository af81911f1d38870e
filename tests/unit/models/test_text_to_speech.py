"""Transformer-TTS and FastSpeech 2: fairseq's with softmax, and every attention of the registry in every place."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import tolerance
import torch
import toy
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.speech_generator import AutoRegressiveSpeechGenerator, NonAutoregressiveSpeechGenerator

from amlp_fairseq.attention.registry import ATTENTIONS, supporting
from amlp_fairseq.compat.internals import ARCH_CONFIG_REGISTRY

pytestmark = pytest.mark.usefixtures("float64")

PLACES = {
    "plugin_tts_transformer": {
        "encoder_self": "noncausal self",
        "decoder_self": "causal self",
        "decoder_cross": "causal cross",
    },
    "plugin_fastspeech2": {"encoder_self": "noncausal self", "decoder_self": "noncausal self"},
}
CASES = [
    (model, place, name)
    for model, places in PLACES.items()
    for place, pattern in places.items()
    for name in supporting(pattern)[:: 2 if place == "decoder_self" and pattern == "noncausal self" else 1]
]
LENGTHS = [5, 3]


def build(arch: str, **options: Any) -> Any:
    """A small model of an architecture, without dropout."""
    sizes = {f"{side}_{name}": 8 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")}
    layers = dict.fromkeys(
        ["encoder_layers", "decoder_layers", "encoder_transformer_layers", "decoder_transformer_layers"], 2
    )
    off = ["dropout", "encoder_dropout", "prenet_dropout", "postnet_dropout", "var_pred_dropout"]
    widths = {"fft_hidden_dim": 8, "fft_kernel_size": 3, "prenet_dim": 8, "postnet_conv_dim": 8}
    ranges = {"pitch_min": 0.0, "pitch_max": 1.0, "energy_min": 0.0, "energy_max": 1.0}
    args = Namespace(
        **{**sizes, **layers, **dict.fromkeys(off, 0.0), **widths, **ranges, "output_frame_dim": 4},
        **{"n_frames_per_step": 1, "max_source_positions": 16, "max_target_positions": 64, "speaker_to_id": None},
        **options,
    )
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    dictionary = Dictionary()
    for symbol in "abcdef":
        dictionary.add_symbol(symbol)
    task = SimpleNamespace(src_dict=dictionary, get_speaker_embeddings=lambda args: None)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).eval()
    if "fastspeech2" in arch:  # predicts about two frames for each symbol
        model.encoder.var_adaptor.duration_predictor.proj.bias.data.fill_(1)
    return model


def batch() -> dict[str, Any]:
    """Two texts with paddings, the frames of two utterances, and what FastSpeech 2 is told of them."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.full((2, 5), 1)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = torch.randint(4, 10, (length,), generator=generator)
    durations = torch.tensor([[2, 1, 3, 0, 1], [1, 2, 2, 0, 0]])
    return {
        "src_tokens": tokens,
        "src_lengths": torch.tensor(LENGTHS),
        "prev_output_tokens": torch.randn(2, 7, 4, generator=generator),
        "target_lengths": durations.sum(dim=1),
        "durations": durations,
        "pitches": torch.rand(2, 5, generator=generator),
        "energies": torch.rand(2, 5, generator=generator),
    }


@pytest.mark.parametrize("arch", ["tts_transformer", "fastspeech2"])
@pytest.mark.parametrize("options", [{}, {"encoder_normalize_before": True, "decoder_normalize_before": True}])
def test_with_softmax_it_is_fairseqs(arch: str, options: dict[str, bool]) -> None:
    """The same parameters, outputs of a batch, gradients, and speech."""
    stock, plugin = build(arch, **options), build(f"plugin_{arch}", **options)
    plugin.load_state_dict(stock.state_dict(), strict=True)
    outputs = [model.train()(**batch()) for model in (stock, plugin)]
    for ours, theirs in zip(*map(flat, outputs), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance.FLOAT32)
    for output in outputs:
        output[0].square().sum().backward()
    gradients = [{n: p.grad for n, p in model.named_parameters() if p.grad is not None} for model in (stock, plugin)]
    torch.testing.assert_close(*gradients, **tolerance.FLOAT32)
    torch.testing.assert_close(speak(plugin), speak(stock), **tolerance.FLOAT32)


def flat(output: Any) -> list[torch.Tensor]:
    """The tensors of a model's output."""
    if isinstance(output, dict):
        output = [output["attn"], output["feature_out"]]
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in flat(part)]
    return [] if output is None else [output]


def speak(model: Any) -> list[dict[str, torch.Tensor]]:
    """Result of fairseq's generator for the first text."""
    whole = batch()
    sample = {"net_input": {name: whole[name][:1] for name in ("src_tokens", "src_lengths", "prev_output_tokens")}}
    sample |= {"target_lengths": whole["target_lengths"][:1], "speaker": None}
    settings = SimpleNamespace(global_cmvn_stats_npz=None)
    if getattr(model, "NON_AUTOREGRESSIVE", False):
        generator = NonAutoregressiveSpeechGenerator(model, None, settings)
    else:
        generator = AutoRegressiveSpeechGenerator(model, None, settings, max_iter=9, eos_prob_threshold=1.0)
    return [{n: v for n, v in each.items() if v is not None} for each in generator.generate(model, sample)]


@pytest.mark.parametrize(("arch", "place", "name"), CASES)
def test_every_attention_in_every_place(arch: str, place: str, name: str) -> None:
    """It is built, trained and speaks. A decoder that is given the frames one by one has the features of the whole
    utterance."""
    model = build(arch, **{f"{place}_attention_type": name})
    replaced = getattr(layers(model, place)[1], "encoder_attn" if place == "decoder_cross" else "self_attn")
    assert type(replaced) is ATTENTIONS[name]
    inputs = batch()
    output = model.train()(**inputs)
    output[0].square().sum().backward()
    assert all(parameter.grad is not None for parameter in replaced.parameters())
    assert all(tensor.isfinite().all() for tensor in flat(output))
    assert all(value.isfinite().all() for value in speak(model)[0].values())
    if arch == "plugin_tts_transformer":
        model.eval()
        encoded = model.encoder(inputs["src_tokens"])
        steps, whole = toy.frame_features(model, encoded, inputs["prev_output_tokens"])
        torch.testing.assert_close(steps, whole, **tolerance.FLOAT32)


def layers(model: Any, place: str) -> Any:
    side = place.split("_")[0]
    if hasattr(model, "decoder"):
        return getattr(model, side).transformer_layers
    return getattr(model.encoder, f"{side}_fft_layers")


def test_the_weights_are_those_over_the_text() -> None:
    """Weights of one utterance sum to 1 over its text; an attention without weights has zeros, and no guided loss."""
    inputs = batch()
    weights = build("plugin_tts_transformer")(**inputs)[2]["attn"]
    assert weights.shape == (2, 5, 7)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, 7))
    assert not weights[1, LENGTHS[1] :].any()
    without = build("plugin_tts_transformer", decoder_cross_attention_type="local")(**inputs)[2]["attn"]
    assert without.shape == (2, 5, 7)
    assert not without.any()
    guided = build("plugin_tts_transformer", decoder_cross_attention_type="local", use_guided_attention_loss=True)
    with pytest.raises(ValueError, match=r"--use-guided-attention-loss needs .* --decoder-cross-attention-type local "):
        guided(**inputs)


def test_an_utterance_has_a_frame() -> None:
    """Also where FastSpeech 2 predicts that no symbol lasts, as it does before it is trained."""
    model = build("plugin_fastspeech2")
    model.encoder.var_adaptor.duration_predictor.proj.bias.data.fill_(-9)
    assert speak(model)[0]["feature"].shape == (1, 4)


@pytest.mark.parametrize("arch", PLACES)
def test_an_attention_that_cannot_stand_somewhere_is_refused(arch: str) -> None:
    for place, pattern in PLACES[arch].items():
        unable = next(name for name in ATTENTIONS if name not in supporting(pattern))
        with pytest.raises(ValueError, match=f"--{place.replace('_', '-')}-attention-type {unable}: .* choose one of"):
            build(arch, **{f"{place}_attention_type": unable})
