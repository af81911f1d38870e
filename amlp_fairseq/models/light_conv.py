"""LightConv and DynamicConv (Wu et al. 2019, "Pay Less Attention with Lightweight and Dynamic Convolutions").

fairseq's ``lightconv`` with the operators of this package, an exact decoding state and the ablations of the paper's
Tables 3 and 6. Checkpoints of fairseq's model load: the options have the same names, and the parameters are renamed.
"""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import FairseqLanguageModel, register_model_architecture
from fairseq.models.transformer import Embedding
from fairseq.modules import AdaptiveInput
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import nn

from amlp_fairseq.compat.internals import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
    eval_str_list,
    gen_parser_from_dataclass,
)
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.models.plugin_transformer import (
    SELF_ATTENTIONS,
    DecoderConfig,
    ModelConfig,
    PluginDecoder,
    PluginTransformerConfig,
    PluginTransformerModel,
    iwslt_de_en,
    redefault,
    set_defaults,
    tiny,
    transformer_config,
    wmt_en_de_big,
)

#: Modules of a layer in fairseq's ``lightconv``, and their names in a Transformer layer with these attentions.
STOCK_NAMES = {
    "linear1": "self_attn.linear1",
    "conv": "self_attn.conv",
    "linear2": "self_attn.linear2",
    "layer_norm1": "self_attn_layer_norm",
    "conv_layer_norm": "self_attn_layer_norm",
    "layer_norm2": "final_layer_norm",
}


class _LoadsStock:
    """Mixin of models that load the parameters of fairseq's ``lightconv`` or ``lightconv_lm``."""

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Rename the parameters of fairseq's model in place."""
        for key in list(state_dict):
            match = re.fullmatch(r"((?:en|de)coder\.)layers\.\d+\.(\w+)\.(.+)", key)
            if match is None or match[2] not in STOCK_NAMES:
                continue
            value = state_dict.pop(key)
            if match[3] == "conv_bias":  # an unused parameter of fairseq's DynamicConv
                continue
            state_dict[key[: match.start(2)] + STOCK_NAMES[match[2]] + key[match.end(2) :]] = value
            # Version 2 has another meaning in the Transformer: no norm after the last layer.
            state_dict[f"{match[1]}version"] = torch.tensor([3.0])
        super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]


@dataclass
class LightConvConfig(PluginTransformerConfig):
    """Options of ``triton_lightconv``; the defaults are fairseq's for ``lightconv``."""

    encoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "encoder_self_attention_type", "light_conv"
    )
    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "decoder_self_attention_type", "light_conv"
    )
    encoder_layers: int = redefault("encoder_layers", 7)
    attention_dropout: float = redefault("attention_dropout", 0.0)
    input_dropout: float = redefault("input_dropout", 0.1)


@dataclass
class DynamicConvConfig(LightConvConfig):
    """Options of ``triton_dynamicconv``."""

    encoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "encoder_self_attention_type", "dynamic_conv"
    )
    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "decoder_self_attention_type", "dynamic_conv"
    )


@register_model("triton_lightconv", dataclass=LightConvConfig)
class LightConvModel(_LoadsStock, PluginTransformerModel):
    """Encoder and decoder of lightweight convolutions (Section 3)."""

    CONFIG = LightConvConfig

    @classmethod
    def build_model(cls, cfg: ModelConfig, task: FairseqTask) -> PluginTransformerModel:
        model = super().build_model(cfg, task)
        _initialize([*model.encoder.layers, *model.decoder.layers])
        return model


@register_model("triton_dynamicconv", dataclass=DynamicConvConfig)
class DynamicConvModel(LightConvModel):
    """Encoder and decoder of dynamic convolutions (Section 4)."""

    CONFIG = DynamicConvConfig


@dataclass
class LightConvLMConfig(DecoderConfig):
    """Options of ``triton_lightconv_lm``; the defaults are fairseq's for ``lightconv_lm``."""

    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "decoder_self_attention_type", "light_conv"
    )
    attention_dropout: float = redefault("attention_dropout", 0.0)
    input_dropout: float = redefault("input_dropout", 0.1)
    decoder_input_dim: Optional[int] = field(
        default=None, metadata={"help": "dimension of the input embedding (default: --decoder-embed-dim)"}
    )
    adaptive_softmax_cutoff: Optional[str] = field(
        default=None, metadata={"help": "comma separated cutoffs; for --criterion adaptive_nll_loss"}
    )
    adaptive_softmax_dropout: float = field(default=0.0, metadata={"help": "dropout of the adaptive softmax' tails"})
    adaptive_softmax_factor: float = field(default=4.0, metadata={"help": "each cluster is that much narrower"})
    adaptive_input: bool = field(default=False, metadata={"help": "input embeddings of variable size"})
    adaptive_input_cutoff: Optional[str] = field(
        default=None, metadata={"help": "comma separated cutoffs of the adaptive input"}
    )
    adaptive_input_factor: float = field(default=4.0, metadata={"help": "each cluster is that much narrower"})
    tie_adaptive_weights: bool = field(default=False, metadata={"help": "tie adaptive softmax and adaptive input"})
    tie_adaptive_proj: bool = field(default=False, metadata={"help": "tie their projections as well"})
    tokens_per_sample: int = II("task.tokens_per_sample")


@dataclass
class DynamicConvLMConfig(LightConvLMConfig):
    """Options of ``triton_dynamicconv_lm``."""

    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "decoder_self_attention_type", "dynamic_conv"
    )


@register_model("triton_lightconv_lm", dataclass=LightConvLMConfig)
class LightConvLanguageModel(_LoadsStock, FairseqLanguageModel):
    """Language model of lightweight convolutions (Section 6.3): only a decoder.

    As in fairseq, layers are pre-norm, and there is no norm after the last layer.
    """

    CONFIG = LightConvLMConfig

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        gen_parser_from_dataclass(parser, cls.CONFIG(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: ModelConfig, task: FairseqTask) -> "LightConvLanguageModel":
        """Build the model from a flat configuration.

        Raises:
            ValueError: if tied adaptive weights differ in cutoffs, factors or dimensions.
        """
        guard(task)
        transformer = transformer_config(cfg, cls.CONFIG)
        transformer.decoder.normalize_before = transformer.no_decoder_final_norm = True
        if transformer.max_target_positions is None:
            transformer.max_target_positions = cfg.tokens_per_sample
        if cfg.tie_adaptive_weights:
            _check_tied(transformer.options)
        decoder = PluginDecoder(
            transformer, task.target_dictionary, cls._embedding(transformer.options, task.source_dictionary), True
        )
        _initialize(decoder.layers)
        return cls(decoder)

    @classmethod
    def _embedding(cls, options: Namespace, dictionary: Dictionary) -> Any:
        """Input embedding, adaptive with ``--adaptive-input``."""
        size, padding, dim = len(dictionary), dictionary.pad(), options.decoder_input_dim
        if not options.adaptive_input:
            return Embedding(size, dim, padding)
        cutoffs = eval_str_list(options.adaptive_input_cutoff, type=int)
        return AdaptiveInput(size, padding, dim, options.adaptive_input_factor, options.decoder_embed_dim, cutoffs)


@register_model("triton_dynamicconv_lm", dataclass=DynamicConvLMConfig)
class DynamicConvLanguageModel(LightConvLanguageModel):
    """Language model of dynamic convolutions."""

    CONFIG = DynamicConvLMConfig


def _initialize(layers: Iterable[TransformerEncoderLayerBase | TransformerDecoderLayerBase]) -> None:
    """Initialise feed-forward layers as fairseq's ``lightconv``."""
    for layer in layers:
        for linear in (layer.fc1, layer.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)


def _check_tied(options: Namespace) -> None:
    """Raise ValueError if adaptive input and softmax cannot share their weights."""
    if not options.adaptive_input:
        raise ValueError("--tie-adaptive-weights needs --adaptive-input")
    for input_option, softmax_option in (
        ("adaptive_input_factor", "adaptive_softmax_factor"),
        ("adaptive_input_cutoff", "adaptive_softmax_cutoff"),
        ("decoder_input_dim", "decoder_output_dim"),
    ):
        if getattr(options, input_option) != getattr(options, softmax_option):
            flags = [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in (input_option, softmax_option)]
            raise ValueError(f"--tie-adaptive-weights needs {flags[0]} to be {flags[1]}")


def _iwslt_de_en(args: Namespace) -> None:
    """Sizes of Section 6.1: d = 512, d_ff = 1024, H = 4; no GLU, as in fairseq's architecture."""
    iwslt_de_en(args)
    set_defaults(args, encoder_glu=0, decoder_glu=0)
    set_defaults(args, attention_dropout=0.1, weight_dropout=0.1, input_dropout=0.0, dropout=0.3)


def _wmt_en_de(args: Namespace) -> None:
    """Default sizes: d = 512, d_ff = 2048, H = 8; not a model of the paper."""


def _wmt_en_de_big(args: Namespace) -> None:
    """Sizes of Section 5.1: d = 1024, d_ff = 4096, H = 16, N = 7 and 6, k = 3, 7, 15, 31x4 and 31x3."""
    wmt_en_de_big(args)
    set_defaults(args, attention_dropout=0.1)


def _wmt_en_fr_big(args: Namespace) -> None:
    """Sizes for En-De with dropout 0.1 (Section 5.3)."""
    set_defaults(args, dropout=0.1)
    _wmt_en_de_big(args)


def _wmt_zh_en_big(args: Namespace) -> None:
    """Sizes for En-De with dropout 0.25 (Section 5.3); attention and weight dropout 0.2 as in fairseq."""
    set_defaults(args, dropout=0.25, attention_dropout=0.2, weight_dropout=0.2)
    _wmt_en_de_big(args)


def _tiny(args: Namespace) -> None:
    """Small sizes for tests."""
    tiny(args)
    set_defaults(args, encoder_kernel_size_list=[3, 7], decoder_kernel_size_list=[3, 7])


def _lm_gbw(args: Namespace) -> None:
    """Sizes for the billion-word benchmark (Sections 5.3 and 6.3): N = 17, k = 15x2, 31x4, 63x11; clusters of 60k, 100k
    and the remaining words with dimensions 1024, 256 and 64, tied with the input."""
    set_defaults(
        args,
        decoder_embed_dim=1024,
        decoder_ffn_embed_dim=4096,
        decoder_attention_heads=16,
        decoder_layers=17,
        decoder_kernel_size_list=[15] * 2 + [31] * 4 + [63] * 11,
        attention_dropout=0.1,
        adaptive_input=True,
        adaptive_input_cutoff="60000,160000",
        adaptive_softmax_cutoff="60000,160000",
        tie_adaptive_weights=True,
        tie_adaptive_proj=True,
    )


for _model in ("triton_lightconv", "triton_dynamicconv"):
    for _arch in (_tiny, _iwslt_de_en, _wmt_en_de, _wmt_en_de_big, _wmt_en_fr_big, _wmt_zh_en_big):
        register_model_architecture(_model, _model + _arch.__name__)(_arch)
    register_model_architecture(f"{_model}_lm", f"{_model}_lm_gbw")(_lm_gbw)
