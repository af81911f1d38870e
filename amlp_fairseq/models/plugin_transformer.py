"""Transformer of the plugin: fairseq's with any attention of the registry and exact incremental decoding.

Notation: docs/glossary.md.
"""

import copy
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Optional, TypeAlias

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.tasks import FairseqTask
from omegaconf import II, DictConfig, OmegaConf, open_dict
from torch import Tensor, nn

from amlp_fairseq.attention.registry import attention_options, replace_attentions, supporting
from amlp_fairseq.compat.internals import FairseqConfig, gen_parser_from_dataclass
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.models.interfaces import StepwiseDecoder

#: Flat configuration of a model: from a checkpoint, a command line or Hydra.
ModelConfig: TypeAlias = FairseqDataclass | Namespace | DictConfig

SELF_ATTENTIONS = supporting("noncausal self", "causal self")
CROSS_ATTENTIONS = supporting("noncausal cross", "causal cross")

#: Options of fairseq's Transformer that are ignored and may have any value: they have no effect, or only together with
#: an option that is refused; ``relu_dropout`` is an old name of ``activation_dropout``.
HARMLESS = frozenset(
    "checkpoint_activations offload_activations min_params_to_wrap export decoder_input_dim relu_dropout "
    "adaptive_softmax_dropout adaptive_softmax_factor tie_adaptive_proj quant_noise_pq_block_size "
    "base_sublayers base_shuffle".split()
)


def _stock_options() -> dict[str, Any]:
    """Options of fairseq's Transformers by their names in checkpoints, with their defaults."""
    # TransformerConfig lacks the options of transformer_align, of NAT models, and some options of its layers.
    defaults: dict[str, Any] = dict.fromkeys(["alignment_heads", "alignment_layer"])
    flags = "full_context_alignment src_embedding_copy scale_attn scale_fc scale_heads scale_resids"
    defaults |= dict.fromkeys(flags.split(), False)
    for option in fields(TransformerConfig):
        if is_dataclass(option.type):
            defaults[option.name] = None  # nested with fairseq-hydra-train
            defaults |= {f"{option.name}_{part.name}": part.default for part in fields(option.type)}
        else:
            defaults[option.name] = option.default
    return {name: default for name, default in defaults.items() if not name.endswith("_name")}


STOCK_OPTIONS = _stock_options()


class AttentionConfig(FairseqDataclass):
    """Base class of configurations with the attentions' options."""

    @classmethod
    def from_namespace(cls, args: ModelConfig) -> FairseqDataclass:
        """Read a flat configuration; also accepts ``average_ffn`` in checkpoints of the plugin's first versions."""
        config = super().from_namespace(args)
        config.no_average_ffn = not getattr(args, "average_ffn", not config.no_average_ffn)
        return config


@dataclass
class DecoderConfig(attention_options(encoder=False), AttentionConfig):  # type: ignore[misc]
    """Options of a decoder's layers and of the attentions (``register_attention``), in a flat configuration with
    fairseq's names."""

    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the decoder"}
    )
    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = field(  # type: ignore[valid-type]
        default="relu", metadata={"help": "activation function to use"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    attention_dropout: float = field(default=0.1, metadata={"help": "dropout probability for attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout probability after activation in FFN"})
    decoder_embed_dim: int = field(default=512, metadata={"help": "decoder embedding dimension"})
    decoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "decoder embedding dimension for FFN"})
    decoder_layers: int = field(default=6, metadata={"help": "number of decoder layers"})
    decoder_attention_heads: int = field(default=8, metadata={"help": "number of decoder attention heads"})
    decoder_normalize_before: bool = field(default=False, metadata={"help": "layer norm before each decoder block"})
    decoder_learned_pos: bool = field(
        default=False, metadata={"help": "use learned positional embeddings in the decoder"}
    )
    decoder_output_dim: Optional[int] = field(
        default=None,
        metadata={"help": "decoder output dimension (extra linear layer if different from decoder embed dim)"},
    )
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "share decoder input and output embeddings"}
    )
    no_token_positional_embeddings: bool = field(
        default=False, metadata={"help": "if set, disables positional embeddings (outside self attention)"}
    )
    no_scale_embedding: bool = field(default=False, metadata={"help": "if set, dont scale embeddings"})
    layernorm_embedding: bool = field(default=False, metadata={"help": "add layernorm to embedding"})
    max_target_positions: Optional[int] = II("task.max_target_positions")

    @classmethod
    def from_namespace(cls, args: ModelConfig) -> FairseqDataclass:
        """Read a flat configuration; also accepts the options that fairseq's checkpoints have under other names."""
        config = super().from_namespace(args)
        if not getattr(args, "weight_softmax", True):
            config.weight_normalization = "none"
        config.activation_dropout = config.activation_dropout or getattr(args, "relu_dropout", None) or 0.0
        return config


@dataclass
class PluginTransformerConfig(DecoderConfig, attention_options(encoder=True)):  # type: ignore[misc]
    """Options of the plugin's encoder-decoder models."""

    #: Inherited options that the model of a subclass does not support.
    UNSUPPORTED = frozenset[str]()

    encoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the encoder"}
    )
    decoder_cross_attention_type: ChoiceEnum(CROSS_ATTENTIONS) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "cross-attention, of the decoder to the source"}
    )
    encoder_embed_dim: int = field(default=512, metadata={"help": "encoder embedding dimension"})
    encoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "encoder embedding dimension for FFN"})
    encoder_layers: int = field(default=6, metadata={"help": "number of encoder layers"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "number of encoder attention heads"})
    encoder_normalize_before: bool = field(default=False, metadata={"help": "layer norm before each encoder block"})
    encoder_learned_pos: bool = field(
        default=False, metadata={"help": "use learned positional embeddings in the encoder"}
    )
    encoder_embed_path: Optional[str] = field(default=None, metadata={"help": "path to pre-trained encoder embedding"})
    decoder_embed_path: Optional[str] = field(default=None, metadata={"help": "path to pre-trained decoder embedding"})
    no_decoder_final_norm: bool = field(
        default=False, metadata={"help": "don't add an extra layernorm after the last decoder block"}
    )
    share_all_embeddings: bool = field(
        default=False, metadata={"help": "share encoder, decoder and output embeddings (needs a joined dictionary)"}
    )
    max_source_positions: int = II("task.max_source_positions")

    @classmethod
    def from_namespace(cls, args: ModelConfig) -> FairseqDataclass:
        cls.refuse_unsupported(args)
        return super().from_namespace(args)

    @classmethod
    def refuse_unsupported(cls, args: ModelConfig) -> None:
        """Refuse options of fairseq's Transformer that ``args`` sets and this model would ignore.

        Raises:
            ValueError: naming the options.
        """
        accepted = (cls.__dataclass_fields__.keys() - cls.UNSUPPORTED) | HARMLESS
        refused = [
            f"--{name.replace('_', '-')} {value} is not supported (only {default})"
            for name, default in STOCK_OPTIONS.items()
            if name not in accepted and (value := getattr(args, name, None)) and value != default
        ]
        if refused:
            raise ValueError("; ".join(refused))


class PluginEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder with the attention of ``--encoder-self-attention-type``."""

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        replace_attentions(self.layers, cfg.options, "encoder")


class PluginDecoder(StepwiseDecoder):
    """fairseq's Transformer decoder with the attentions of ``--decoder-self-attention-type`` and
    ``--decoder-cross-attention-type``.

    With an incremental state every call gets the whole prefix, and any number of its words may be new; stock fairseq
    reads only the last word.

    Args:
        cfg: configuration of the Transformer, with the model's options in ``cfg.options``.
        dictionary: target dictionary.
        embed_tokens: input embedding.
        no_encoder_attn: omit cross-attention (language models).
        words_per_step: z; inputs are consumed in whole steps.
        directions: h, the directions of a step's words.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
        words_per_step: int = 1,
        directions: int = 1,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.words_per_step = words_per_step
        replace_attentions(self.layers, cfg.options, "decoder", words_per_step, directions)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features from which the next words are predicted.

        Args:
            prev_output_tokens: start symbol and previous words, (B, T).
            encoder_out: output of the encoder.
            incremental_state: state of the layers after the inputs consumed so far.

        Returns:
            Features (B, T', C) of the T' inputs not yet consumed, and ``attn`` (B, T', S): the last layer's attention
            over the source, averaged over heads.
        """
        if full_context_alignment or alignment_layer is not None or alignment_heads is not None:
            raise ValueError("full_context_alignment, alignment_layer and alignment_heads are not supported")
        start = self._consume(prev_output_tokens.size(1), incremental_state)
        positions = torch.arange(start, prev_output_tokens.size(1), device=prev_output_tokens.device)

        x = self.embed(prev_output_tokens, positions)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        # B x T x C -> T x B x C
        x = self.dropout_module(x).transpose(0, 1)
        encoder_padding_mask = None
        encoder_states = None
        if encoder_out is not None:
            encoder_states = encoder_out["encoder_out"][0]
            if encoder_out["encoder_padding_mask"]:
                encoder_padding_mask = encoder_out["encoder_padding_mask"][0]
        padding_mask = None
        if incremental_state is None:
            padding_mask = prev_output_tokens.eq(self.padding_idx)
            padding_mask = padding_mask if padding_mask.any() else None
        self_attn_mask = None
        if any(layer.self_attn.takes_mask for layer in self.layers):
            self_attn_mask = self._attention_bias(positions, x)

        attn = None
        for index, layer in enumerate(self.layers):
            x, attn, _ = layer(
                x,
                encoder_states,
                encoder_padding_mask,
                incremental_state,
                self_attn_mask=self_attn_mask,
                self_attn_padding_mask=padding_mask,
                need_attn=index == self.num_layers - 1,
            )
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": None}

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Inputs (B, T', C) of the layers at ``positions`` (T',), the last positions of ``tokens`` (B, T)."""
        x = self.embed_words(tokens[:, tokens.size(1) - len(positions) :], positions)
        if self.embed_positions is None:
            return x
        if len(positions) == 1:  # looks up the last position only
            return x + self.embed_positions(tokens, incremental_state={})
        return x + self.embed_positions(tokens)[:, tokens.size(1) - len(positions) :]

    def embed_words(self, words: Tensor, positions: Tensor) -> Tensor:
        x = self.embed_scale * self.embed_tokens(words)
        x = x if self.project_in_dim is None else self.project_in_dim(x)
        return x.masked_fill((positions < self.starts).unsqueeze(-1), 0.0) if self.starts else x

    def encode_positions(self, positions: Tensor) -> Tensor:
        if self.embed_positions is None:
            return self.embed_tokens.weight.new_zeros(len(positions), self.embed_dim)
        # Buffers may have more slots than there are learned positions; the search never reaches the extra slots.
        positions = positions.clamp(max=self.embed_positions.max_positions - 1)
        words = torch.full((1, int(positions.max()) + 1), self.padding_idx + 1, device=positions.device)
        return self.embed_positions(words)[0, positions]

    def attention_mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return keys <= queries.unsqueeze(1)

    def _consume(self, length: int, incremental_state: dict[str, Any] | None) -> int:
        """Number of inputs already consumed; records in the incremental state that ``length`` inputs are consumed."""
        if incremental_state is None:
            return 0
        start = self.get_incremental_state(incremental_state, "consumed") or 0
        z = self.words_per_step
        if length % z or length <= start:
            raise ValueError(
                f"incremental decoding needs a prefix of whole steps of {z} slots, longer than the {start} consumed, "
                f"not {length} slots"
            )
        self.set_incremental_state(incremental_state, "consumed", length)
        return start

    def _attention_bias(self, positions: Tensor, x: Tensor) -> Tensor | None:
        """Bias (T', T), 0 where a position may attend and -inf elsewhere; None if all positions may attend to all."""
        keys = torch.arange(int(positions[-1]) + 1, device=positions.device)
        allowed = self.attention_mask(positions, keys)
        if allowed.all():
            return None
        return torch.zeros(allowed.shape, dtype=x.dtype, device=x.device).masked_fill(~allowed, float("-inf"))


@register_model("plugin_transformer", dataclass=PluginTransformerConfig)
class PluginTransformerModel(TransformerModelBase):
    """Transformer whose attentions are options; registered subclasses have another ``CONFIG``."""

    CONFIG: type[PluginTransformerConfig] = PluginTransformerConfig

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        gen_parser_from_dataclass(parser, cls.CONFIG(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: ModelConfig, task: FairseqTask) -> "PluginTransformerModel":
        guard(task)
        config = cls.transformer_config(cfg, task)
        model = super().build_model(config, task)
        model.cfg = cfg
        return model

    @classmethod
    def transformer_config(cls, cfg: ModelConfig, task: FairseqTask) -> TransformerConfig:
        """Configuration of encoder and decoder."""
        return transformer_config(cfg, cls.CONFIG)

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding) -> PluginEncoder:
        return PluginEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> PluginDecoder:
        return PluginDecoder(cfg, tgt_dict, embed_tokens)

    def prepare_for_inference_(self, cfg: FairseqConfig) -> None:
        to_bfloat16(self, cfg)
        super().prepare_for_inference_(cfg)


def transformer_config(cfg: ModelConfig, config: type[FairseqDataclass]) -> TransformerConfig:
    """Convert a flat configuration to fairseq's nested configuration, with the flat configuration as ``options``."""
    flat = Namespace(**vars(config.from_namespace(cfg)))
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(flat, name, None) is None:
            setattr(flat, name, flat.decoder_embed_dim)
    result = TransformerConfig.from_namespace(flat)
    result.options = flat
    return result


def as_plugin_transformer(cfg: DictConfig | FairseqDataclass) -> DictConfig | FairseqDataclass:
    """Convert the configuration of fairseq's Transformer to the plugin's, which decodes faster; unchanged if it has
    options that only fairseq's Transformer supports."""
    try:
        PluginTransformerConfig.refuse_unsupported(cfg)
    except ValueError:
        return cfg
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
        cfg._name = "plugin_transformer"
    return cfg


def to_bfloat16(model: nn.Module, cfg: FairseqConfig) -> None:
    """Convert the model to bfloat16 with ``--bf16``, which stock fairseq-generate and fairseq-interactive ignore."""
    if cfg.common.bf16:
        model.bfloat16()


def set_defaults(args: Namespace, **defaults: object) -> None:
    """Set options that the command line did not set, in architecture functions."""
    for name, value in defaults.items():
        setattr(args, name, getattr(args, name, value))


def redefault(name: str, value: object) -> Any:
    """Field of an option of the plugin's Transformer with another default, for a subclass of its configuration."""
    return field(default=value, metadata=PluginTransformerConfig.__dataclass_fields__[name].metadata)


def tiny(args: Namespace) -> None:
    """Small sizes for tests: 2 + 2 layers, d = 64."""
    for side in ("encoder", "decoder"):
        sizes = {"embed_dim": 64, "ffn_embed_dim": 128, "layers": 2, "attention_heads": 2}
        set_defaults(args, **{f"{side}_{name}": size for name, size in sizes.items()})


def iwslt_de_en(args: Namespace) -> None:
    """Sizes of fairseq's ``transformer_iwslt_de_en``: d = 512, FFN 1024, 4 heads."""
    for side in ("encoder", "decoder"):
        set_defaults(args, **{f"{side}_ffn_embed_dim": 1024, f"{side}_attention_heads": 4})


def wmt_en_de(args: Namespace) -> None:
    """Transformer base: the default sizes."""


def wmt_en_de_big(args: Namespace) -> None:
    """Transformer big: sizes of fairseq's ``transformer_vaswani_wmt_en_de_big``."""
    for side in ("encoder", "decoder"):
        sizes = {"embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16}
        set_defaults(args, **{f"{side}_{name}": size for name, size in sizes.items()})
    set_defaults(args, dropout=0.3)


def register_sizes(model: str) -> None:
    """Register the architectures ``<model>_tiny``, ``_iwslt_de_en``, ``_wmt_en_de`` and ``_wmt_en_de_big``."""
    for size in (tiny, iwslt_de_en, wmt_en_de, wmt_en_de_big):
        register_model_architecture(model, f"{model}_{size.__name__}")(size)


register_sizes("plugin_transformer")
