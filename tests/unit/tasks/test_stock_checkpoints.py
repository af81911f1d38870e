"""fairseq's Transformers under translation_interleaved: the plugin's decoder where it has all of their options."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any

import pytest
from omegaconf import OmegaConf

from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig, as_plugin_transformer


def config(**options: Any) -> Any:
    return OmegaConf.create({**asdict(PluginTransformerConfig()), "_name": "transformer_wmt_en_de", **options})


@pytest.mark.parametrize("kind", [OmegaConf.create, lambda values: Namespace(**values)], ids=["hydra", "argparse"])
def test_a_plain_transformer_becomes_one_of_the_plugin(kind: Any) -> None:
    given = kind(OmegaConf.to_container(config(dropout=0.3)))
    found = as_plugin_transformer(given)
    assert (found._name, found.dropout) == ("plugin_transformer", 0.3)
    assert given._name == "transformer_wmt_en_de"


@pytest.mark.parametrize("options", [{"encoder_layerdrop": 0.1}, {"quant_noise_pq": 0.1}, {"adaptive_input": True}])
def test_one_with_other_options_stays_what_it_is(options: dict[str, Any]) -> None:
    given = config(**options)
    assert as_plugin_transformer(given) is given
