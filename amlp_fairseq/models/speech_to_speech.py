"""fairseq's speech-to-speech Transformers with any attention of the registry.

Source: Lee et al. (2022), "Direct speech-to-speech translation with discrete units", whose model writes units;
fairseq's model of spectrograms has the same encoder and the decoder of Transformer-TTS. Notation: docs/glossary.md.
"""

import logging
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.checkpoint_utils import load_pretrained_component_from_model
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model_architecture
from fairseq.tasks import FairseqTask
from torch import Tensor

from amlp_fairseq.attention.registry import replace_attentions, supporting
from amlp_fairseq.compat.internals import (
    ARCH_CONFIG_REGISTRY,
    S2SpecTTransformerModel,
    S2STransformerEncoder,
    S2STransformerMultitaskModelBase,
    S2UTTransformerModel,
    StackedEmbedding,
    TransformerUnitDecoder,
    gen_parser_from_dataclass,
)
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.compat.tasks import guard
from amlp_fairseq.models.text_to_speech import PluginTTSDecoder, PluginTTSDecoderLayer, TTSTransformerConfig, complete

logger = logging.getLogger(__name__)


@dataclass
class SpeechToSpeechConfig(TTSTransformerConfig):
    """Options of the plugin's speech-to-speech models in addition to fairseq's."""

    encoder_self_attention_type: ChoiceEnum(supporting("noncausal self")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the encoder"}
    )
    decoder_self_attention_type: ChoiceEnum(supporting("causal self")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "self-attention of the decoder"}
    )
    decoder_cross_attention_type: ChoiceEnum(supporting("causal cross")) = field(  # type: ignore[valid-type]
        default="softmax", metadata={"help": "cross-attention, of the decoder to the source"}
    )


class PluginS2SEncoder(S2STransformerEncoder):
    """fairseq's encoder with the attention of ``--encoder-self-attention-type``."""

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        replace_attentions(self.transformer_layers, args, "encoder")


class PluginUnitDecoder(TransformerUnitDecoder):
    """fairseq's decoder with the attentions of ``--decoder-self-attention-type`` and
    ``--decoder-cross-attention-type``."""

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: StackedEmbedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        replace_attentions(self.layers, args, "decoder")

    def build_decoder_layer(self, args: Namespace, no_encoder_attn: bool = False) -> PluginTTSDecoderLayer:
        return PluginTTSDecoderLayer(args, no_encoder_attn)

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], *args: object, **kwargs: object
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features (B, T, C), T = 1 with an incremental state, and ``attn``: [(B, T, S)], averaged over heads.

        ``attn`` is [None] for attentions without weights; zeros if a step writes several units, because fairseq's
        generator requires weights then.
        """
        x, extra = super().extract_features(prev_output_tokens, encoder_out, *args, **kwargs)
        if extra["attn"][0] is None and self.n_frames_per_step > 1:
            extra["attn"] = [x.new_zeros(x.size(0), x.size(1), encoder_out["encoder_out"][0].size(0))]
        return x, extra


class PluginS2SModel(S2STransformerMultitaskModelBase):
    """Base class of the speech-to-speech models, with the options of the attentions and the encoder."""

    CONFIG = SpeechToSpeechConfig

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        super().add_args(parser)
        gen_parser_from_dataclass(parser, cls.CONFIG(), delete_default=True)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "PluginS2SModel":
        guard(task)
        return super().build_model(complete(args, cls.CONFIG), task)

    @classmethod
    def build_encoder(cls, args: Namespace) -> PluginS2SEncoder:
        """Build the encoder, with the parameters of ``--load-pretrained-encoder-from`` if that checkpoint exists, as in
        fairseq; a trained model does not need that checkpoint.

        Raises:
            ValueError: if the checkpoint's encoder does not have the same parameters.
        """
        encoder = PluginS2SEncoder(args)
        path = getattr(args, "load_pretrained_encoder_from", None)
        if path is None:
            return encoder
        if not Path(path).exists():
            logger.warning(f"--load-pretrained-encoder-from {path} does not exist: nothing is taken from it")
            return encoder
        try:
            return load_pretrained_component_from_model(encoder, path)
        except RuntimeError as error:
            raise ValueError(
                f"--load-pretrained-encoder-from {path}: its encoder does not have this one's parameters; "
                f"--finetune-from-model takes what fits"
            ) from error


@register_model("plugin_s2ut_transformer")
class PluginS2UTTransformerModel(PluginS2SModel, S2UTTransformerModel):
    """Speech to units with attentions that are options; also loads checkpoints of fairseq's ``s2ut_transformer``."""

    @classmethod
    def build_decoder(cls, args: Namespace, tgt_dict: Dictionary) -> PluginUnitDecoder:
        width, pad = args.decoder_embed_dim, tgt_dict.pad()
        embed_tokens = StackedEmbedding(len(tgt_dict), width, pad, num_stacked=args.n_frames_per_step)
        return PluginUnitDecoder(args, tgt_dict, embed_tokens)


@register_model("plugin_s2spect_transformer")
class PluginS2SpecTTransformerModel(PluginS2SModel, S2SpecTTransformerModel):
    """Speech to spectrograms with attentions that are options; also loads checkpoints of fairseq's
    ``s2spect_transformer``."""

    @classmethod
    def build_decoder(cls, args: Namespace) -> PluginTTSDecoder:
        return PluginTTSDecoder(args, None)


for _model in ("s2ut_transformer", "s2spect_transformer"):
    for _name in (_model, f"{_model}_fisher"):
        register_model_architecture(f"plugin_{_model}", f"plugin_{_name}")(ARCH_CONFIG_REGISTRY[_name])
