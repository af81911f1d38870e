"""Speech to units and to spectrograms: fairseq's with softmax, every attention of the registry in every place, and the
commands on tones."""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import numpy as np
import pytest
import tolerance
import torch
import toy
import yaml
from fairseq import checkpoint_utils, options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from fairseq.speech_generator import AutoRegressiveSpeechGenerator
from fairseq.tasks.speech_to_speech import StackUnitSequenceGenerator

from amlp_fairseq.attention.registry import ATTENTIONS, supporting
from amlp_fairseq.compat.internals import ARCH_CONFIG_REGISTRY

STOCK = ["s2ut_transformer", "s2spect_transformer"]
PLACES = {"encoder_self": "noncausal self", "decoder_self": "causal self", "decoder_cross": "causal cross"}
CASES = [
    (f"plugin_{STOCK[number % 2]}", place, name)
    for place, pattern in PLACES.items()
    for number, name in enumerate(supporting(pattern))
]
UNITS = toy.dictionary(5)
#: Frames of the two utterances; the encoder has 6 and 4 positions for them.
LENGTHS = [24, 14]


def build(arch: str, **changes: Any) -> Any:
    """A small model of an architecture, without dropout."""
    sizes = {f"{side}_{name}": 8 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")}
    layers = dict.fromkeys(["encoder_layers", "decoder_layers", "decoder_transformer_layers"], 2)
    heads = dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 2)
    off = dict.fromkeys(["dropout", "prenet_dropout", "postnet_dropout"], 0.0)
    widths = {"prenet_dim": 8, "postnet_conv_dim": 8, "conv_channels": 8, "speaker_embed_dim": 3}
    features = {"input_feat_per_channel": 4, "output_frame_dim": 4, "n_frames_per_step": 1}
    limits = {"max_source_positions": 32, "max_target_positions": 12, "target_speaker_embed": False}
    args = Namespace(**{**sizes, **layers, **heads, **off, **widths, **features, **limits, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    task = SimpleNamespace(
        args=SimpleNamespace(target_is_code="s2ut" in arch), target_dictionary=UNITS, multitask_tasks={}
    )
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task).eval()


def batch(model: Any) -> dict[str, Any]:
    """Two utterances of different lengths, and what was said of their translations."""
    generator = torch.Generator().manual_seed(2)
    frames = torch.randn(2, LENGTHS[0], 4, generator=generator)
    frames[1, LENGTHS[1] :] = 0
    inputs: dict[str, Any] = {"src_tokens": frames, "src_lengths": torch.tensor(LENGTHS)}
    if model.encoder.spk_emb_proj is not None:
        inputs["tgt_speaker"] = torch.randn(2, 3, generator=generator)
    if hasattr(model.decoder, "out_dim"):
        said = torch.randn(2, 7, model.decoder.out_dim, generator=generator)
        return {**inputs, "prev_output_tokens": said, "target_lengths": torch.tensor([7, 5])}
    said = torch.randint(4, len(UNITS), (2, 7), generator=generator)
    said[:, 0], said[1, 5:] = UNITS.eos(), UNITS.pad()
    return {**inputs, "prev_output_tokens": said}


def tensors(output: Any) -> list[torch.Tensor]:
    """Outputs of a model, and its weights over the source."""
    *said, extra = output
    weights = extra["attn"]
    return [*said, weights[0] if isinstance(weights, list) else weights]


def generate(model: Any) -> list[dict[str, torch.Tensor]]:
    """Results of fairseq's generators for the two utterances: units by beam search, frames, or several units a step."""
    inputs = batch(model)
    sample = {"net_input": inputs, "speaker": inputs.get("tgt_speaker")}
    if hasattr(model.decoder, "out_dim"):
        settings = SimpleNamespace(global_cmvn_stats_npz=None)
        speaker = AutoRegressiveSpeechGenerator(model, None, settings, max_iter=9, eos_prob_threshold=1.0)
        found = [speaker.generate(model, sample)]
    elif model.decoder.n_frames_per_step > 1:
        found = StackUnitSequenceGenerator(UNITS, len(UNITS) - 4).generate([model], sample)
    else:
        found = SequenceGenerator([model], UNITS, beam_size=3, max_len_b=8).generate([model], sample)
    return [
        {name: value for name, value in each.items() if isinstance(value, torch.Tensor)}
        for hypotheses in found
        for each in hypotheses
    ]


@pytest.mark.parametrize("arch", [*STOCK, *(f"{arch}_fisher" for arch in STOCK)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_speaker_embed": True, "n_frames_per_step": 2, "conv_version": "convtransformer"},
    ],
)
def test_with_softmax_it_is_fairseqs(arch: str, changes: dict[str, Any]) -> None:
    """The same parameters, outputs of a batch, gradients, and translations."""
    stock, plugin = build(arch, **changes), build(f"plugin_{arch}", **changes)
    plugin.load_state_dict(stock.state_dict(), strict=True)
    outputs = [model.train()(**batch(model)) for model in (stock, plugin)]
    for ours, theirs in zip(*map(tensors, outputs), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance.FLOAT32)
    for output in outputs:
        output[0].square().sum().backward()
    gradients = [{n: p.grad for n, p in model.named_parameters() if p.grad is not None} for model in (stock, plugin)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)  # a ten times longer way back
    torch.testing.assert_close(generate(plugin.eval()), generate(stock.eval()), **tolerance.FLOAT32)


@pytest.mark.parametrize(("arch", "place", "name"), CASES)
def test_every_attention_in_every_place(arch: str, place: str, name: str) -> None:
    """It is built, trained and translates. What a decoder says step by step it says of the whole translation, too."""
    model = build(arch, **{f"{place}_attention_type": name})
    side = getattr(model, place.split("_")[0])
    layer = (side.layers if hasattr(side, "layers") else side.transformer_layers)[1]
    assert type(layer.encoder_attn if place == "decoder_cross" else layer.self_attn) is ATTENTIONS[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sum(part.square().sum() for part in model.train()(**batch(model))[:-1]).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    optimizer.step()
    model.eval()
    (check_units if arch == "plugin_s2ut_transformer" else check_frames)(model)


@pytest.mark.parametrize("arch", [f"plugin_{arch}" for arch in STOCK])
def test_an_attention_that_cannot_stand_somewhere_is_refused(arch: str) -> None:
    for place, pattern in PLACES.items():
        unable = next(name for name in ATTENTIONS if name not in supporting(pattern))
        with pytest.raises(ValueError, match=f"--{place.replace('_', '-')}-attention-type {unable}: .* choose one of"):
            build(arch, **{f"{place}_attention_type": unable})


@torch.no_grad()
def check_units(model: Any) -> None:
    """The scores that the beam search gives its hypotheses are those of the whole hypotheses."""
    inputs = batch(model)
    encoded = model.forward_encoder(inputs["src_tokens"], inputs["src_lengths"])
    hypotheses = generate(model)
    assert len(hypotheses) == 2 * 3
    for number, hypothesis in enumerate(hypotheses):
        tokens = hypothesis["tokens"]
        prefix = torch.cat([tokens[-1:], tokens[:-1]])[None]
        source = model.encoder.reorder_encoder_out(encoded, torch.tensor([number // 3]))
        scores = model.decoder(prefix, source)[0].log_softmax(dim=-1)[0, range(len(tokens)), tokens]
        torch.testing.assert_close(hypothesis["positional_scores"], scores, **tolerance.FLOAT32)


@torch.no_grad()
def check_frames(model: Any) -> None:
    """A decoder that is given the frames one by one has the features of the whole; what it speaks is finite."""
    inputs = batch(model)
    encoded = model.forward_encoder(inputs["src_tokens"], inputs["src_lengths"])
    steps, whole = toy.frame_features(model, encoded, inputs["prev_output_tokens"])
    torch.testing.assert_close(steps, whole, **tolerance.FLOAT32)
    assert all(value.isfinite().all() for each in generate(model) for value in each.values())


@pytest.mark.parametrize("name", ["softmax", "local"])
def test_several_units_in_a_step(name: str) -> None:
    """fairseq's generator for them wants weights over the source, which some attentions do not have. The scores are
    those of the whole translation."""
    model = build("plugin_s2ut_transformer", decoder_cross_attention_type=name, n_frames_per_step=2)
    whole = batch(model)
    weights = model(**whole)[1]["attn"][0]
    assert weights.shape == (2, 7, 6)
    torch.testing.assert_close(weights.sum(dim=2), torch.full((2, 7), float(name == "softmax")))
    hypotheses = generate(model)
    assert len(hypotheses[0]["tokens"]) > 2
    tokens = hypotheses[0]["tokens"]
    pairs = tokens[: len(tokens) // 2 * 2].view(1, -1, 2)
    packed = StackUnitSequenceGenerator(UNITS, len(UNITS) - 4).pack_units(pairs, 2)
    source = model.encoder.reorder_encoder_out(
        model.forward_encoder(whole["src_tokens"], whole["src_lengths"]), torch.tensor([0])
    )
    logits = model.decoder(torch.cat([torch.tensor([[UNITS.eos()]]), packed], dim=1), source)[0]
    scores = logits.log_softmax(dim=-1)[0, range(len(tokens)), tokens]
    torch.testing.assert_close(hypotheses[0]["positional_scores"], scores, **tolerance.FLOAT32)


@pytest.mark.parametrize("arch", STOCK)
def test_the_command_line_refuses_an_attention(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["DATA", "--task", "speech_to_speech", "--arch", f"plugin_{arch}", "--decoder-self-attention-type", "xca"]
    with pytest.raises(SystemExit):
        options.parse_args_and_arch(options.get_training_parser(), words)
    able = ", ".join(supporting("causal self"))
    assert f"--decoder-self-attention-type 'xca' is unknown; known: {able} " in capsys.readouterr().err


#: Of the synthetic speech: samples a second, samples a frame, channels of a frame.
RATE, HOP, CHANNELS = 8000, 128, 16
#: Each unit is a tone.
SENTENCES = ["0 1 2 3", "3 1 0 2", "2 0 3 0", "1 3 2 1", "3 2 1 0"]


def speech(sentence: str, lowest: int) -> np.ndarray:
    """Log energies (frames, CHANNELS) of the units' tones; that of unit 0 has the lowest pitch and is the shortest."""
    tones = []
    for unit in map(int, sentence.split()):
        time = np.arange((9 + unit) * HOP) / RATE
        tones.append(np.sin(2 * np.pi * (lowest + 400 * unit) * time))
    frames = np.concatenate(tones).reshape(-1, HOP) * np.hanning(HOP)
    bands = np.abs(np.fft.rfft(frames))[:, : 4 * CHANNELS].reshape(len(frames), CHANNELS, 4).sum(axis=2)
    return np.log(bands + 0.1).astype(np.float32)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones, translated to units in ``units/`` and to higher tones in ``spectrograms/``; what is trained with is
    validated and tested with, too."""
    folder = tmp_path_factory.mktemp("speech")
    for kind in ("units", "spectrograms"):
        (folder / kind).mkdir()
        lines = []
        for number, sentence in enumerate(SENTENCES):
            source, target = speech(sentence, lowest=300), speech(sentence, lowest=900)
            np.save(folder / f"source{number}.npy", source)
            np.save(folder / f"target{number}.npy", target)
            said = (sentence, len(sentence.split())) if kind == "units" else (f"target{number}.npy", len(target))
            fields = (f"u{number}", f"source{number}.npy", len(source), *said)
            lines.append("\t".join(map(str, fields)) + "\n")
        for subset, times in (("train", 10), ("dev", 1), ("test", 1)):  # many short epochs would take longer
            text = "id\tsrc_audio\tsrc_n_frames\ttgt_audio\ttgt_n_frames\n" + "".join(lines * times)
            (folder / kind / f"{subset}.tsv").write_text(text, encoding="utf-8")
        config = {"input_feat_per_channel": CHANNELS, "audio_root": str(folder)}
        (folder / kind / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


PLUGIN = ["--user-dir", commands.PLUGIN, "--task", "speech_to_speech", "--cpu", "--required-batch-size-multiple", 1]
TO_UNITS = ["--target-is-code", "--target-code-size", 4]
MODEL = [
    *("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64, "--encoder-attention-heads", 2, "--encoder-layers", 1),
    *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64, "--decoder-attention-heads", 2, "--conv-channels", 32),
    *("--dropout", 0, "--encoder-self-attention-type", "amlp_cov", "--decoder-self-attention-type", "amlp_cov"),
]
SETTINGS = [
    *("--valid-subset", "dev", "--batch-size", 5, "--optimizer", "adam", "--clip-norm", 1),
    *("--validate-interval", 1000, "--save-interval", 1000, "--seed", 1, "--log-format", "json"),
]


@pytest.fixture(scope="module")
def to_units(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has been trained by fairseq's command."""
    folder = tmp_path_factory.mktemp("to_units")
    model = ["--arch", "plugin_s2ut_transformer", *MODEL, "--decoder-layers", 1]
    model += ["--decoder-cross-attention-type", "abc"]
    settings = [*SETTINGS, "--criterion", "label_smoothed_cross_entropy", "--lr", 0.005, "--max-update", 150]
    commands.run("fairseq_cli.train", data / "units", *PLUGIN, *TO_UNITS, *model, *settings, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.mark.slow
def test_units_of_tones(data: Path, to_units: Path) -> None:
    """fairseq's command translates everything right. (Its search ends with the third hypothesis, however unlikely,
    unless those that are too short are forbidden.)"""
    search = ["--path", to_units, "--gen-subset", "test", "--beam", 3, "--min-len", 4]
    printed = commands.run("fairseq_cli.generate", data / "units", *PLUGIN, *TO_UNITS, *search)
    assert {number: words for number, (_, words) in commands.lines(printed, "D").items()} == dict(enumerate(SENTENCES))


@pytest.mark.slow
def test_an_encoder_from_a_checkpoint(to_units: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its parameters are taken, or it is said that they do not fit, or that the checkpoint is not there."""
    (trained,), config, task = checkpoint_utils.load_model_ensemble_and_task([str(to_units)])
    config.model.load_pretrained_encoder_from = str(to_units)
    built = task.build_model(config.model)
    torch.testing.assert_close(built.encoder.state_dict(), trained.encoder.state_dict(), atol=0, rtol=0)
    config.model.encoder_self_attention_type = "softmax"
    message = r"--load-pretrained-encoder-from .*: its encoder .* parameters; --finetune-from-model takes what fits"
    with pytest.raises(ValueError, match=message):
        task.build_model(config.model)
    config.model.load_pretrained_encoder_from = "gone.pt"
    with caplog.at_level(logging.WARNING):
        task.build_model(config.model)
    assert "--load-pretrained-encoder-from gone.pt does not exist: nothing is taken from it" in caplog.text


@pytest.mark.slow
def test_spectrograms_of_tones(data: Path, tmp_path: Path) -> None:
    """Trained by fairseq's command the loss falls; fairseq's generator speaks."""
    folder = data / "spectrograms"
    model = ["--arch", "plugin_s2spect_transformer", *MODEL, "--decoder-transformer-layers", 1]
    model += ["--output-frame-dim", CHANNELS, "--n-frames-per-step", 4, "--postnet-conv-dim", 32]
    settings = [*SETTINGS, "--criterion", "tacotron2", "--lr", 0.005, "--max-update", 80]
    printed = commands.run("fairseq_cli.train", folder, *PLUGIN, *model, *settings, "--save-dir", tmp_path)
    losses = [float(loss) for loss in re.findall(r'"train_loss": "([\d.]+)"', printed)]
    assert losses[-1] < 0.5 * losses[0]
    (trained,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint_last.pt")])
    task.load_dataset("test")
    dataset = task.dataset("test")
    sample = dataset.collater([dataset[number] for number in range(len(dataset))])
    speaker = AutoRegressiveSpeechGenerator(trained, None, task.data_cfg, max_iter=20)
    for spoken in speaker.generate(trained, sample):
        assert spoken["feature"].shape == (len(spoken["eos_prob"]), CHANNELS)
        assert spoken["feature"].isfinite().all()
