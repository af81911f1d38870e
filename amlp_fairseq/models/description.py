"""A model's description of its layers, of which the engine builds it (``engine/src/build.h``)."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import (
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
)
from torch import nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.registry import ATTENTIONS
from amlp_fairseq.compat.internals import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from amlp_fairseq.engine.description import PARALLEL, VERSION, UnsupportedError
from amlp_fairseq.models.cmlmc import CMLMCDecoder
from amlp_fairseq.models.interfaces import StepwiseDecoder
from amlp_fairseq.models.interleaved_decoder import InterleavedDecoder
from amlp_fairseq.models.nat_decoder_layer import NATDecoderLayer
from amlp_fairseq.ops.generation_order import GenerationOrder

#: Activations of the engine by the names of fairseq's functions.
ACTIVATIONS = {
    **{name: name for name in ("relu", "gelu", "gelu_accurate", "tanh")},
    "<lambda>": "linear",
}


def describe(model: BaseFairseqModel) -> dict[str, Any]:
    """The description of a model that ``Engine`` takes, as JSON data; weights have the names of its ``state_dict``.

    Raises:
        UnsupportedError: naming what the engine does not have.
    """
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if not isinstance(encoder, TransformerEncoderBase) or not isinstance(decoder, (StepwiseDecoder, CMLMCDecoder)):
        raise UnsupportedError(f"models of type {type(model).__name__}")
    described = {
        "version": VERSION,
        "encoder": _side(encoder),
        "decoder": {**_side(decoder), "output": _output(decoder)},
        **{name: getattr(decoder.dictionary, name)() for name in ("pad", "eos", "unk")},
    }
    if isinstance(decoder, CMLMCDecoder):
        described["bos"] = decoder.dictionary.bos()
        described["decoder"] |= _refinement(decoder, model.correction_starts >= 0)
    else:
        _check_steps(decoder)
        order = decoder.order if isinstance(decoder, InterleavedDecoder) else GenerationOrder(1)
        described["order"] = dict(vars(order))
        described["decoder"] |= {"words_per_step": decoder.words_per_step, "starts": decoder.starts}
    return described


def description_of(model: BaseFairseqModel) -> dict[str, Any]:
    """The entry of a model in config.json: its description, or why there is none."""
    try:
        return describe(model)
    except UnsupportedError as error:
        return {"version": VERSION, "unsupported": str(error)}


def _refinement(decoder: CMLMCDecoder, corrects: bool) -> dict[str, Any]:
    """Parts of a decoder that writes all words at a time, besides its layers.

    Args:
        corrects: an iteration writes all words anew, not only masks.
    """
    return {
        "kind": PARALLEL,
        "lengths": decoder.embed_length.weight.size(0),
        "length_offsets": decoder.pred_length_offset,
        "corrects": corrects,
    }


def _side(side: TransformerEncoderBase | TransformerDecoderBase) -> dict[str, Any]:
    """Parts that encoders and decoders have in common."""
    layers = [*side.layers]
    width = side.embed_tokens.weight.size(1)
    if getattr(side, "project_in_dim", None) is not None or getattr(side, "project_out_dim", None) is not None:
        raise UnsupportedError("embeddings of another width than the layers")
    norm_first = {bool(layer.normalize_before) for layer in layers}
    if len(norm_first) > 1:
        raise UnsupportedError("norms in front of some layers, and after others")
    joined = {"join_positions": True} if getattr(side, "join_positions", None) is not None else {}
    return {
        "width": width,
        "vocabulary": side.embed_tokens.weight.size(0),
        "layers": [_layer(layer) for layer in layers],
        "norm_first": norm_first == {True},
        "final_norm": side.layer_norm is not None,
        "embedding_norm": side.layernorm_embedding is not None,
        "scale": 1.0 if joined else float(side.embed_scale),
        **joined,
        "max_positions": side.max_positions(),
        **_positions(side),
    }


def _layer(layer: Any) -> dict[str, Any]:
    if type(layer) not in (TransformerEncoderLayerBase, TransformerDecoderLayerBase, NATDecoderLayer):
        raise UnsupportedError(f"layers of type {type(layer).__name__}")
    if (activation := getattr(layer.activation_fn, "__name__", "")) not in ACTIVATIONS:
        raise UnsupportedError(f"--activation-fn {activation}")
    described = {
        "activation": ACTIVATIONS[activation],
        "inner_width": layer.fc1.weight.size(0),
        "self_attention": describe_attention(layer.self_attn),
    }
    if isinstance(layer, TransformerDecoderLayerBase):
        if layer.encoder_attn is None:
            raise UnsupportedError("decoders without an encoder")
        described["cross_attention"] = describe_attention(layer.encoder_attn)
    if isinstance(layer, NATDecoderLayer) and layer.repos:
        described["causal_attention"] = describe_attention(layer.causal_attn)
    return described


def describe_attention(attention: nn.Module) -> dict[str, Any]:
    """Description of an attention, of which the engine builds it.

    Raises:
        UnsupportedError: for one that the engine does not have.
    """
    if isinstance(attention, Attention):
        kind = type(attention)
        described = next(cls for cls in kind.__mro__ if "describe" in vars(cls))
        if described is not kind and described in ATTENTIONS.values():  # what another attention says of itself
            raise UnsupportedError(f"the attention {attention.name}")
        return attention.describe()
    if type(attention) is MultiheadAttention and attention.bias_k is None and not attention.add_zero_attn:
        return {"kind": "softmax", "heads": attention.num_heads}
    raise UnsupportedError(f"attentions of type {type(attention).__name__}")


def _positions(side: TransformerEncoderBase | TransformerDecoderBase) -> dict[str, Any]:
    """Kind of position encodings, the row of the first position, and in how many directions they run."""
    if isinstance(side, InterleavedDecoder):
        return {"positions": "interleaved", "position_offset": 0, "directions": side.position_directions}
    kinds = {
        type(None): "none",
        SinusoidalPositionalEmbedding: "sinusoidal",
        LearnedPositionalEmbedding: "learned",
    }
    if (kind := type(side.embed_positions)) not in kinds:
        raise UnsupportedError(f"positions of type {kind.__name__}")
    return {"positions": kinds[kind], "position_offset": side.padding_idx + 1, "directions": 1}


def _check_steps(decoder: StepwiseDecoder) -> None:
    """Raise UnsupportedError unless words see all words of their step and of those before it."""
    z = decoder.words_per_step
    slots = torch.arange(4 * z, device=decoder.embed_tokens.weight.device)
    if not torch.equal(decoder.attention_mask(slots, slots), slots[None] // z <= slots[:, None] // z):
        raise UnsupportedError("--decoder-attention-mask other than interleaved")


def _output(decoder: TransformerDecoderBase) -> str:
    """The name of the map to logits, which older checkpoints of fairseq do not have if it is the embedding."""
    if decoder.adaptive_softmax is not None:
        raise UnsupportedError("--adaptive-softmax-cutoff")
    shared = decoder.output_projection.weight is decoder.embed_tokens.weight
    return "decoder.embed_tokens" if shared else "decoder.output_projection"
