"""benchmarks/attention_probe.py: its measures by hand, and that watching changes nothing."""

from __future__ import annotations

import pytest
import torch
import toy

from amlp_fairseq.attention.amlp import AMLPPQuery
from benchmarks import attention_probe as probe


def test_measures_by_hand() -> None:
    words = torch.tensor([[True, True, False]])
    same, opposite = torch.tensor([[[[1.0, 2.0], [1.0, 2.0], [9.0, 9.0]]]]), torch.tensor([[[[3.0], [-3.0], [9.0]]]])
    assert probe.between_positions(same, words) == 0
    assert probe.between_positions(opposite, words) == 1
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert probe.relative_entropy(weights, 4) == pytest.approx(0.5)
    assert probe.relative_entropy(weights[2:], torch.tensor([2])) == pytest.approx(1.0)


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
