"""Transformer with average attention (Zhang, Xiong and Su 2018), whose decoding state is one vector per layer."""

from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum

from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.models.plugin_transformer import (
    SELF_ATTENTIONS,
    PluginTransformerConfig,
    PluginTransformerModel,
    redefault,
    register_sizes,
)


@dataclass
class AANTransformerConfig(PluginTransformerConfig):
    """Options of ``aan_transformer``: average attention in the decoder, self-attention in the encoder."""

    decoder_self_attention_type: ChoiceEnum(SELF_ATTENTIONS) = redefault(  # type: ignore[valid-type]
        "decoder_self_attention_type", "average"
    )


@register_model("aan_transformer", dataclass=AANTransformerConfig)
class AANTransformerModel(PluginTransformerModel):
    """AAN-Transformer; ``--encoder-self-attention-type average`` for the encoder as well."""

    CONFIG = AANTransformerConfig


register_sizes("aan_transformer")
