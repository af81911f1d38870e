"""benchmarks/attention_probe.py: its measures by hand, and that watching changes nothing."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import Any

import pytest
import torch
import toy
from fairseq import checkpoint_utils
from fairseq.data import LanguagePairDataset
from omegaconf import OmegaConf

from amlp_fairseq.attention.amlp import SCALES, AMLPPQuery
from amlp_fairseq.compat.internals import NATLossConfig
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask
from benchmarks import attention_probe as probe


def test_measures_by_hand() -> None:
    words = torch.tensor([[True, True, False]])
    same, opposite = torch.tensor([[[[1.0, 2.0], [1.0, 2.0], [9.0, 9.0]]]]), torch.tensor([[[[3.0], [-3.0], [9.0]]]])
    assert probe.between_positions(same, words) == 0
    assert probe.between_positions(opposite, words) == 1
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert probe.relative_entropy(weights, 4) == pytest.approx(0.5)
    assert probe.relative_entropy(weights[2:], torch.tensor([2])) == pytest.approx(1.0)


@torch.no_grad()
@pytest.mark.parametrize("scale", SCALES)
def test_weights_of_the_keys_are_the_attention_s_own(scale: str) -> None:
    """Without the norm of the output they are what it reads from values that are an identity matrix."""
    options = {"amlp_scale": scale, "no_amlp_output_norm": True}
    network = toy.cmlmc(decoder_cross_attention_type="amlp_pquery", **options).eval()
    attention, found = next(each for each in network.decoder.modules() if isinstance(each, AMLPPQuery)), {}
    q, k = 4 * torch.randn(3, 2, 5, 8), 4 * torch.randn(3, 2, 8, 8)  # (B, H, n, d_h): two heads of 16 dimensions
    memory = {"k": k, "v": torch.eye(8).expand(3, 2, 8, 8)}
    probe.observe(attention, found)
    maps, _ = attention.attend(q, memory)
    assert found["map_entropy"] == pytest.approx(probe.relative_entropy(maps, 8))


def test_watching_an_attention_changes_nothing() -> None:
    network = toy.cmlmc(decoder_self_attention_type="amlp_pquery", decoder_cross_attention_type="amlp_pquery").eval()
    source = toy.batch([[0, 5, 6, 7], [0, 8]], toy.dictionary(12), left_pad=True)["net_input"]
    target = torch.tensor([[0, 5, 3, 3, 2], [0, 3, 2, 1, 1]])

    def scores() -> torch.Tensor:
        encoder_out = network.encoder(source["src_tokens"], source["src_lengths"])
        return network.decoder(normalize=True, prev_output_tokens=target, encoder_out=encoder_out)

    before, found = scores(), {}
    for module in network.decoder.modules():
        if isinstance(module, AMLPPQuery):
            probe.observe(module, found)
    assert torch.equal(scores(), before)
    assert found.keys() == {"between_positions", "activation_entropy", "map_entropy"}
    assert all(0 <= value <= 1 + 1e-6 for value in found.values())


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A CMLMC model and a validation set of three sentences, as if they were read from files."""
    words = toy.dictionary(12)
    task = TranslationCMLMCTask(TranslationCMLMCConfig(), words, words)
    monkeypatch.setattr(TranslationCMLMCTask, "load_dataset", lambda *_: None)
    sentences = [torch.tensor([*range(5, 6 + length), words.eos()]) for length in range(3)]
    sizes = [len(words) for words in sentences]
    task.datasets["valid"] = LanguagePairDataset(sentences, sizes, words, sentences, sizes, words)
    models = [toy.cmlmc(decoder_cross_attention_type="amlp_pquery")]
    del models[0].decoder.forward_length_prediction  # the toy's own
    cfg = Namespace(criterion=OmegaConf.structured(NATLossConfig(_name="nat_loss", label_smoothing=0.1)))
    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble_and_task", lambda *_: (models, cfg, task))
    monkeypatch.setattr(sys, "argv", ["attention_probe", "data", "folder/checkpoint.pt"])
    return models


def test_fewer_sentences_than_asked_for(loaded: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    probe.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["attention"] for line in lines if "map_entropy" in line] == [
        f"layers.{layer}.encoder_attn" for layer in (0, 1)
    ]
    assert all(line["query_gradient"] > 0 for line in lines)


def test_another_model_is_refused(loaded: list[Any]) -> None:
    loaded[0] = toy.stock_transformer(toy.task())
    with pytest.raises(SystemExit, match=r"folder/checkpoint\.pt is not of a CMLMC model"):
        probe.main()
