"""fairseq's Transformer-TTS and FastSpeech 2 with any attention of the registry.

Sources: Li et al. (2019), "Neural Speech Synthesis with Transformer Network"; Ren et al. (2021), "FastSpeech 2"; AMLP
paper, Section 3.1.1, which replaces all their attentions. Notation: docs/glossary.md.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from typing import Any, List

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model_architecture
from fairseq.models.text_to_speech import (
    FastSpeech2Encoder,
    FastSpeech2Model,
    LengthRegulator,
    TTSTransformerDecoder,
    TTSTransformerEncoder,
    TTSTransformerModel,
)
from fairseq.modules import TransformerDecoderLayer
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from amlp_fairseq.attention.registry import attention_options, build_attention, replace_attentions, supporting
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.compat.internals import ARCH_CONFIG_REGISTRY, gen_parser_from_dataclass
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.models.plugin_transformer import AttentionConfig, set_defaults


@dataclass
class FastSpeech2Config(attention_options(encoder=True), attention_options(encoder=False), AttentionConfig):  # type: ignore[misc]
    """Options of the plugin's FastSpeech 2 in addition to fairseq's."""

    encoder_self_attention_type: ChoiceEnum(supporting("noncausal self")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the encoder"}
    )
    decoder_self_attention_type: ChoiceEnum(supporting("noncausal self", "causal self")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the decoder"}
    )
    encoder_kernel_size_list: List[int] = field(
        default_factory=lambda: [15],
        metadata={"help": "widths of the encoder's convolutions or local windows; one number is for all layers"},
    )
    decoder_kernel_size_list: List[int] = field(
        default_factory=lambda: [15],
        metadata={"help": "widths of the decoder's convolutions or local windows; one number is for all layers"},
    )


@dataclass
class TTSTransformerConfig(FastSpeech2Config):
    """Options of the plugin's Transformer-TTS in addition to fairseq's."""

    decoder_cross_attention_type: ChoiceEnum(supporting("noncausal cross", "causal cross")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "cross-attention, of the decoder to the text"}
    )


def complete(args: Namespace, config: type[FairseqDataclass]) -> Namespace:
    """Options of a model, with defaults for the attentions' options that a checkpoint of fairseq's model lacks."""
    return Namespace(**{**vars(config.from_namespace(args)), **vars(args)})


class PluginTTSEncoder(TTSTransformerEncoder):
    """fairseq's encoder with the attention of ``--encoder-self-attention-type``."""

    def __init__(self, args: Namespace, src_dict: Dictionary, embed_speaker: nn.Embedding | None) -> None:
        super().__init__(args, src_dict, embed_speaker)
        args.encoder_layers = args.encoder_transformer_layers  # its name in other models, which attentions read
        replace_attentions(self.transformer_layers, args, "encoder")


class PluginTTSDecoderLayer(TransformerDecoderLayer):
    """fairseq's decoder layer for attentions that return weights averaged over heads."""

    def forward(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor | None, None]:
        """Run fairseq's layer; the weights are (1, B, T, S), where fairseq has one matrix per head."""
        x, weights, _ = super().forward(*args, **kwargs)
        return x, None if weights is None else weights.unsqueeze(0), None


class PluginTTSDecoder(TTSTransformerDecoder):
    """fairseq's decoder with the attentions of ``--decoder-self-attention-type`` and
    ``--decoder-cross-attention-type``."""

    def __init__(self, args: Namespace, src_dict: Dictionary) -> None:
        super().__init__(args, src_dict)
        self.transformer_layers = nn.ModuleList(
            PluginTTSDecoderLayer(args) for _ in range(args.decoder_transformer_layers)
        )
        args.decoder_layers = args.decoder_transformer_layers  # its name in other models, which attentions read
        replace_attentions(self.transformer_layers, args, "decoder")

    def extract_features(
        self, prev_outputs: Tensor, encoder_out: dict[str, list[Tensor]], *args: object, **kwargs: object
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features (B, T, C) of the frames, and ``attn`` (B, S, T), zeros for attentions without weights.

        Raises:
            ValueError: if ``--use-guided-attention-loss`` needs weights and the attention has none.
        """
        x, extra = super().extract_features(prev_outputs, encoder_out, *args, **kwargs)
        if extra["attn"] is None:
            if getattr(self.args, "use_guided_attention_loss", False):
                name = self.args.decoder_cross_attention_type
                raise ValueError(
                    f"--use-guided-attention-loss needs weights over the text, which "
                    f"--decoder-cross-attention-type {name} does not have"
                )
            extra["attn"] = x.new_zeros(x.size(0), encoder_out["encoder_out"][0].size(0), x.size(1))
        return x, extra


@register_model("plugin_tts_transformer")
class PluginTTSTransformerModel(TTSTransformerModel):
    """Transformer-TTS whose attentions are options; also loads checkpoints of fairseq's ``tts_transformer``."""

    CONFIG = TTSTransformerConfig

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        TTSTransformerModel.add_args(parser)
        gen_parser_from_dataclass(parser, cls.CONFIG(), delete_default=True)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "PluginTTSTransformerModel":
        guard(task)
        args = complete(args, cls.CONFIG)
        encoder = PluginTTSEncoder(args, task.src_dict, task.get_speaker_embeddings(args))
        return cls(encoder, PluginTTSDecoder(args, task.src_dict))


class AtLeastOneFrame(LengthRegulator):
    """fairseq's length regulator, with one frame for the first symbol if all durations are 0, as an untrained model
    predicts; fairseq's decoder fails without frames."""

    def forward(self, x: Tensor, durations: Tensor) -> tuple[Tensor, Tensor]:
        """Repeat inputs (B, S, C) by durations (B, S) in frames: (B, T, C), and the numbers of frames (B,)."""
        if not durations.any():
            durations = durations.clone()
            durations[:, 0] = 1
        expanded: tuple[Tensor, Tensor] = super().forward(x, durations)
        return expanded


class PluginFastSpeech2Encoder(FastSpeech2Encoder):
    """fairseq's encoder, which contains all layers of FastSpeech 2, with the non-causal attentions of
    ``--encoder-self-attention-type`` and ``--decoder-self-attention-type``."""

    def __init__(self, args: Namespace, src_dict: Dictionary, embed_speaker: nn.Embedding | None) -> None:
        super().__init__(args, src_dict, embed_speaker)
        self.var_adaptor.length_regulator = AtLeastOneFrame()
        for side, layers in (("encoder", self.encoder_fft_layers), ("decoder", self.decoder_fft_layers)):
            for i, layer in enumerate(layers):
                layer.self_attn = build_attention(AttentionSpec(args, side, i, "noncausal self"))


@register_model("plugin_fastspeech2")
class PluginFastSpeech2Model(FastSpeech2Model):
    """FastSpeech 2 whose attentions are options; also loads checkpoints of fairseq's ``fastspeech2``."""

    CONFIG = FastSpeech2Config

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        FastSpeech2Model.add_args(parser)
        gen_parser_from_dataclass(parser, cls.CONFIG(), delete_default=True)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "PluginFastSpeech2Model":
        guard(task)
        args = complete(args, cls.CONFIG)
        # The FFN of 'average' has the width of the layer's convolutional FFN, which has no dropout inside.
        set_defaults(
            args,
            encoder_ffn_embed_dim=args.fft_hidden_dim,
            decoder_ffn_embed_dim=args.fft_hidden_dim,
            activation_dropout=0.0,
        )
        encoder = PluginFastSpeech2Encoder(args, task.src_dict, task.get_speaker_embeddings(args))
        return cls(encoder, args, task.src_dict)


for _name in ("tts_transformer", "fastspeech2"):
    register_model_architecture(f"plugin_{_name}", f"plugin_{_name}")(ARCH_CONFIG_REGISTRY[_name])
