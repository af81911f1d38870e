"""The layers of a model folder as the engine builds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Names of models, and of architectures after "_", that are Transformers with softmax attention, unless an option says
#: otherwise.
TRANSFORMERS = ("plugin_transformer", "transformer", "ibdecoder")
#: Options that change the layers, and the only value that the engine has; absent is that value, too.
ONLY = {
    "encoder_self_attention_type": "softmax",
    "decoder_self_attention_type": "softmax",
    "decoder_cross_attention_type": "softmax",
    "decoder_attention_mask": "interleaved",
    "decoder_word_positions": "interleaved",
    "adaptive_softmax_cutoff": None,
    "no_cross_attention": False,
    "cross_self_attention": False,
    "adaptive_input": False,
}
ACTIVATIONS = ("relu", "gelu", "gelu_accurate", "gelu_fast", "tanh", "linear")
#: Indices of fairseq's dictionaries.
PAD, EOS, UNK = 1, 2, 3


class UnsupportedError(ValueError):
    """A model that the engine does not have; it is decoded with PyTorch."""


def describe(config: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a model that ``Engine`` takes.

    Args:
        config: ``config.json`` of a model folder.
        weights: its weights by name.

    Raises:
        UnsupportedError: naming what the engine does not have.
    """
    model = config["model"]
    name = model["_name"]
    if not any(name == known or name.startswith(f"{known}_") for known in TRANSFORMERS):
        raise UnsupportedError(f"models of type {name}")
    interleaved = name.startswith("ibdecoder")
    for option, value in ONLY.items():
        if model.get(option, value) != value:
            raise UnsupportedError(f"--{option.replace('_', '-')} {model[option]}")
    activation = model.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise UnsupportedError(f"--activation-fn {activation}")
    order = {"num_directions": 1, "words_per_direction": 1, "middle_to_side": False}
    if interleaved:
        order = config["task_state"]["interleaving"]
    words = order["num_directions"] * order["words_per_direction"] or 1
    encoder, decoder = (_side(side, model, activation, weights) for side in ("encoder", "decoder"))
    decoder |= {"words_per_step": words, "starts": 0, "max_positions": model.get("max_target_positions") or 1024}
    if interleaved:
        decoder |= {
            "positions": "interleaved",
            "position_offset": 0,
            "starts": words,
            "directions": order["num_directions"],
        }
    shared = "decoder.output_projection.weight" not in weights
    decoder["output"] = "decoder.embed_tokens" if shared else "decoder.output_projection"
    return {"encoder": encoder, "decoder": decoder, "order": dict(order), "pad": PAD, "eos": EOS, "unk": UNK}


def _rows(weight: Any) -> int:
    """The number of rows of a matrix, which may be int8 with its scales."""
    return len(weight[0] if isinstance(weight, tuple) else weight)


def _side(side: str, model: Mapping[str, Any], activation: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    width = model[f"{side}_embed_dim"]
    layers = [name.split(".")[2] for name in weights if name.startswith(f"{side}.layers.")]
    positions, offset = "sinusoidal", PAD + 1
    if model.get("no_token_positional_embeddings"):
        positions = "none"
    elif model.get(f"{side}_learned_pos"):
        positions = "learned"
    return {
        "width": width,
        "heads": model[f"{side}_attention_heads"],
        "inner_width": model[f"{side}_ffn_embed_dim"],
        "vocabulary": _rows(weights[f"{side}.embed_tokens.weight"]),
        "layers": len(set(layers)),
        "norm_first": bool(model.get(f"{side}_normalize_before")),
        "final_norm": f"{side}.layer_norm.weight" in weights,
        "embedding_norm": bool(model.get("layernorm_embedding")),
        "scale": 1.0 if model.get("no_scale_embedding") else math.sqrt(width),
        "activation": activation,
        "positions": positions,
        "position_offset": offset,
        "directions": 1,
    }
