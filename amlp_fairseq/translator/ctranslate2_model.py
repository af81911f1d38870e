"""Autoregressive Transformers as models of CTranslate2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2.converters.fairseq as fairseq_converter
import torch
from ctranslate2.converters import Converter
from ctranslate2.specs.transformer_spec import TransformerSpec
from fairseq.models.transformer import TransformerModelBase

#: Its activations, by fairseq's names.
ACTIVATIONS = fairseq_converter._SUPPORTED_ACTIVATIONS
#: The only attention that CTranslate2 has.
SOFTMAX = "softmax"


class InMemory(Converter):
    """CTranslate2's converter for fairseq's Transformers, for one that is loaded.

    Args:
        model: a Transformer of fairseq, or ``plugin_transformer`` with softmax attention, on the CPU.
        task: its translation task.

    Raises:
        ValueError: for a model that CTranslate2 has not; says why.
    """

    def __init__(self, model: Any, task: Any) -> None:
        if not isinstance(model, TransformerModelBase) or hasattr(model, "initialize_output_tokens"):
            raise ValueError(f"CTranslate2 has no {type(model).__name__}: only autoregressive Transformers")
        cfg = model.cfg
        kinds = [str(getattr(cfg, f"{name}_attention_type", None) or SOFTMAX) for name in _ATTENTIONS]
        order = getattr(task, "order", None)
        if order is not None and not order.left_to_right:
            raise ValueError("CTranslate2 writes from left to right, one word a step; this model does not")
        if set(kinds) != {SOFTMAX}:
            raise ValueError(f"CTranslate2 has softmax attention only; this model has {', '.join(kinds)}")
        if lacking := _lacking(model):
            raise ValueError(f"CTranslate2 has nothing for {', '.join(lacking)}")
        first = [side.layers[0] for side in (model.encoder, model.decoder)]
        if len({(layer.normalize_before, layer.self_attn.num_heads) for layer in first}) > 1:
            raise ValueError(
                "CTranslate2 needs encoder and decoder to have the same normalize-before and attention-heads"
            )
        self.model, self.task = model, task

    def _load(self) -> Any:
        model, cfg = self.model, self.model.cfg
        layer = model.encoder.layers[0]
        spec = TransformerSpec.from_config(
            (len(model.encoder.layers), len(model.decoder.layers)),
            layer.self_attn.num_heads,
            pre_norm=layer.normalize_before,
            activation=ACTIVATIONS[str(cfg.activation_fn)],
            layernorm_embedding=cfg.layernorm_embedding,
        )
        fairseq_converter.set_transformer_encoder(spec.encoder, model.encoder)
        fairseq_converter.set_transformer_decoder(spec.decoder, model.decoder)
        spec.register_source_vocabulary(fairseq_converter._get_vocab(self.task.source_dictionary))
        spec.register_target_vocabulary(fairseq_converter._get_vocab(self.task.target_dictionary))
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec


_ATTENTIONS = ("encoder_self", "decoder_self", "decoder_cross")


def _lacking(model: Any) -> list[str]:
    """Options with which a Transformer is another one than CTranslate2's."""
    cfg, decoder, activation = model.cfg, model.decoder, str(model.cfg.activation_fn)
    options = {
        f"--activation-fn {activation} (it has {', '.join(ACTIVATIONS)})": activation not in ACTIVATIONS,
        "--encoder-layers 0": not len(model.encoder.layers),
        "--decoder-layers 0": not len(decoder.layers),
        "--decoder-output-dim that is not --decoder-embed-dim": decoder.project_out_dim is not None,
        "--no-token-positional-embeddings": decoder.embed_positions is None,
        "--no-decoder-final-norm": decoder.layer_norm is None and any(each.normalize_before for each in decoder.layers),
        "--adaptive-softmax-cutoff": decoder.adaptive_softmax is not None,
        "--no-cross-attention": getattr(cfg, "no_cross_attention", False),
        "--cross-self-attention": getattr(cfg, "cross_self_attention", False),
        "--quant-noise-pq": decoder.quant_noise is not None,
    }
    return [option for option, given in options.items() if given]


def convert(model: Any, task: Any, out: Path, quantization: str | None = None) -> None:
    """Write a model of CTranslate2; see :class:`InMemory`."""
    with torch.no_grad():
        InMemory(model, task).convert(str(out), quantization=quantization)
