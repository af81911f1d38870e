"""Transformers that fairseq has trained, under whatever architecture, as ``plugin_transformer``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
)

from amlp_fairseq.compat.internals import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    TransformerAlignModel,
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from amlp_fairseq.models.plugin_transformer import STOCK_OPTIONS, PluginTransformerConfig

#: Options that say how to train, or that the layers and weights of a built model show.
_OF_TRAINING = frozenset(
    "encoder_layerdrop decoder_layerdrop encoder_layers_to_keep decoder_layers_to_keep encoder_embed_path "
    "decoder_embed_path merge_src_tgt_embed max_positions".split()
)
#: Parts of a Transformer as fairseq builds it.
_PLAIN = (
    *(TransformerEncoder, TransformerEncoderBase, TransformerEncoderLayerBase),
    *(TransformerDecoder, TransformerDecoderBase, TransformerDecoderLayerBase),
)


def plugin_options(model: BaseFairseqModel) -> dict[str, Any] | None:
    """The options with which ``plugin_transformer`` is the same model; None for one that it cannot be: with other
    layers, with options that it does not have, or trained to align words."""
    encoder: Any = getattr(model, "encoder", None)
    decoder: Any = getattr(model, "decoder", None)
    if isinstance(model, TransformerAlignModel) or type(encoder) not in _PLAIN or type(decoder) not in _PLAIN:
        return None
    if not all(type(layer) in _PLAIN for layer in (*encoder.layers, *decoder.layers)):
        return None
    flat = {name: _plain(getattr(encoder.cfg, name, default)) for name, default in STOCK_OPTIONS.items()}
    flat = {
        name: value for name, value in flat.items() if not is_dataclass(value)
    }  # nested ones, whose parts are there
    shared = encoder.embed_tokens.weight is decoder.embed_tokens.weight
    flat |= {
        **dict.fromkeys(_OF_TRAINING & flat.keys()),
        "encoder_layers": len(encoder.layers),
        "decoder_layers": len(decoder.layers),
        "share_all_embeddings": shared,
        "share_decoder_input_output_embed": shared or decoder.share_input_output_embed,
        "max_source_positions": encoder.max_source_positions,
        "max_target_positions": decoder.max_target_positions,
        "activation_dropout": flat["activation_dropout"] or flat["relu_dropout"],
    }
    try:
        PluginTransformerConfig.refuse_unsupported(Namespace(**flat))
    except ValueError:
        return None
    own = {name: value for name, value in flat.items() if name in PluginTransformerConfig.__dataclass_fields__}
    return {**asdict(PluginTransformerConfig(**own)), "_name": "plugin_transformer"}


def _plain(value: object) -> Any:
    return value.value if isinstance(value, Enum) else value


def is_fairseqs(thing: object) -> bool:
    """True for a class or a function of fairseq's, or of the plugin's, and not of a user's directory."""
    return str(thing.__module__).split(".")[0] in ("fairseq", __name__.split(".")[0])


def fairseqs_architecture(name: str) -> str:
    """An architecture of the same model that fairseq itself registers; options that are set are the same with it."""
    known = ARCH_MODEL_INV_REGISTRY[ARCH_MODEL_NAME_REGISTRY[name]]
    own = [each for each in (name, *known) if is_fairseqs(ARCH_CONFIG_REGISTRY[each])]
    return own[0]


@torch.no_grad()
def difference(model: BaseFairseqModel, other: BaseFairseqModel, source: Dictionary, target: Dictionary) -> float:
    """The largest difference of logits between two models for a few words, relative to the largest logit."""
    generator = torch.Generator().manual_seed(1)
    words = [torch.randint(each.nspecial, len(each), (2, 7), generator=generator) for each in (source, target)]
    words[0][:, -1], words[1][:, 0] = source.eos(), target.eos()
    lengths = torch.full((2,), 7)
    found = []
    for each in (model, other):
        training = each.training
        found.append(each.eval()(words[0], lengths, words[1])[0].float())
        each.train(training)
    return float((found[0] - found[1]).abs().max() / found[0].abs().max())
