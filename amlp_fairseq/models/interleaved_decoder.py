"""IBDecoder: a Transformer whose decoder writes several words per step in several directions.

Source: Zhang, Titov and Sennrich, "Fast Interleaved Bidirectional Sequence Generation" (2020). One implementation for
every number of directions h and words per direction c: autoregressive (1, 1), semi-autoregressive (1, K), IBDecoder
(2, 1), IBDecoder + SA (2, c), IMDecoder (4, 1). h and c belong to the task; everything else is a Transformer.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase, TransformerModelBase
from omegaconf import II
from torch import Tensor, nn

from amlp_fairseq.modules.signed_positions import SignedSinusoidalPositionalEmbedding
from amlp_fairseq.ops.interleave import (
    ATTENTION_MASKS,
    Interleaving,
    attention_mask,
    slot_directions,
    word_positions,
)
from amlp_fairseq.registration import register_model

WORD_POSITIONS = ("interleaved", "vanilla")


@dataclass
class IBDecoderConfig(FairseqDataclass):
    """Options of ``ibdecoder``: those of fairseq's Transformer, and the ablations of the paper's Table 2."""

    decoder_attention_mask: ChoiceEnum(ATTENTION_MASKS) = field(  # type: ignore[valid-type]
        default="interleaved",
        metadata={"help": "which words a word sees: Eq. 4; 'vanilla': M(1, 1); or only those of its direction"},
    )
    decoder_word_positions: ChoiceEnum(WORD_POSITIONS) = field(  # type: ignore[valid-type]
        default="interleaved",
        metadata={"help": "Eq. 7 and 10; 'vanilla': 0, 1, 2, … in the order of generation"},
    )
    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = field(  # type: ignore[valid-type]
        default="relu", metadata={"help": "activation function to use"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    attention_dropout: float = field(default=0.1, metadata={"help": "dropout probability for attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout probability after activation in FFN"})
    encoder_embed_dim: int = field(default=512, metadata={"help": "encoder embedding dimension"})
    encoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "encoder embedding dimension for FFN"})
    encoder_layers: int = field(default=6, metadata={"help": "number of encoder layers"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "number of encoder attention heads"})
    encoder_normalize_before: bool = field(default=False, metadata={"help": "layer norm before each encoder block"})
    decoder_embed_dim: int = field(default=512, metadata={"help": "decoder embedding dimension"})
    decoder_ffn_embed_dim: int = field(default=2048, metadata={"help": "decoder embedding dimension for FFN"})
    decoder_layers: int = field(default=6, metadata={"help": "number of decoder layers"})
    decoder_attention_heads: int = field(default=8, metadata={"help": "number of decoder attention heads"})
    decoder_normalize_before: bool = field(default=False, metadata={"help": "layer norm before each decoder block"})
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "share decoder input and output embeddings"}
    )
    share_all_embeddings: bool = field(
        default=False, metadata={"help": "share encoder, decoder and output embeddings (needs a joined dictionary)"}
    )
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


class InterleavedDecoder(TransformerDecoderBase):
    """Transformer decoder over slots in generation order (Section 4).

    The first z inputs are start symbols: zero vectors plus their positions, whatever token stands there. With an
    incremental state, the inputs already consumed are remembered and any number of whole steps may follow at once.

    Args:
        cfg: the Transformer's configuration.
        dictionary: target dictionary.
        embed_tokens: input embedding.
        pattern: h and c.
        mask: one of ``ATTENTION_MASKS``.
        positions: one of ``WORD_POSITIONS``.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Embedding,
        pattern: Interleaving,
        mask: str,
        positions: str,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.pattern = pattern
        self.mask = mask
        self.embed_positions = None
        self.embed_word_positions = SignedSinusoidalPositionalEmbedding(cfg.decoder.embed_dim)
        # The directions that Eq. 5 and 7 count apart: vanilla positions count none.
        self.position_directions = 1 if positions == "vanilla" else pattern.num_directions
        self.embed_directions = None
        if self.position_directions > 2:
            self.embed_directions = nn.Embedding(pattern.num_directions, cfg.decoder.embed_dim)
            nn.init.normal_(self.embed_directions.weight, mean=0, std=cfg.decoder.embed_dim**-0.5)
        # Goes into the checkpoint, so that resuming with another pattern is refused; float, for --store-ema scales it.
        self.register_buffer("interleaving", torch.tensor(_pattern_values(pattern), dtype=torch.float))

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features of the slots that the inputs predict.

        Args:
            prev_output_tokens: z start symbols and the words before, in generation order, (B, T). With an
                incremental state, T must be a multiple of z and the whole prefix is given each time.
            encoder_out: the encoder's output.
            incremental_state: keys and values of the slots consumed so far.

        Returns:
            features (B, T', C), T' = T less the slots already consumed, and ``attn`` (B, T', S): the last layer's
            attention over the source, averaged over heads.
        """
        if full_context_alignment or alignment_layer is not None or alignment_heads is not None:
            raise ValueError("ibdecoder does not support full_context_alignment, alignment_layer or alignment_heads")
        start = self._consume(prev_output_tokens.size(1), incremental_state)
        slots = torch.arange(start, prev_output_tokens.size(1), device=prev_output_tokens.device)
        prev_output_tokens = prev_output_tokens[:, start:]

        # B x T x C -> T x B x C
        x = self._embed(prev_output_tokens, slots).transpose(0, 1)
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
        self_attn_mask = self._attention_bias(slots, x)

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
        return x.transpose(0, 1), {"attn": [attn], "inner_states": None}

    def _consume(self, length: int, incremental_state: dict[str, Any] | None) -> int:
        """How many of the inputs the incremental state holds already; afterwards it is to hold all of them."""
        if incremental_state is None:
            return 0
        start = self.get_incremental_state(incremental_state, "consumed") or 0
        z = self.pattern.words_per_step
        if length % z or length <= start:
            raise ValueError(
                f"incremental decoding needs a prefix of whole steps of {z} slots, longer than the {start} consumed, "
                f"not {length} slots"
            )
        self.set_incremental_state(incremental_state, "consumed", length)
        return start

    def _embed(self, tokens: Tensor, slots: Tensor) -> Tensor:
        words = self.embed_scale * self.embed_tokens(tokens)
        words = words.masked_fill((slots < self.pattern.words_per_step).view(1, -1, 1), 0.0)
        x = words + self.embed_word_positions(word_positions(slots, self.position_directions)).to(words)
        if self.embed_directions is not None:
            x = x + self.embed_directions(slot_directions(slots, self.position_directions))
        return self.dropout_module(x)

    def _attention_bias(self, slots: Tensor, x: Tensor) -> Tensor | None:
        """0 where a slot may attend and -inf elsewhere, (T', T); None where everything is allowed."""
        keys = torch.arange(int(slots[-1]) + 1, device=slots.device)
        allowed = attention_mask(slots, keys, self.pattern, self.mask)
        if allowed.all():
            return None
        return torch.zeros(allowed.shape, dtype=x.dtype, device=x.device).masked_fill(~allowed, float("-inf"))

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """Refuse the weights of another pattern or dictionary."""
        saved = state_dict.get(f"{name}.interleaving")
        if saved is None:
            raise ValueError("the checkpoint does not hold an ibdecoder: it has no interleaving pattern")
        saved = tuple(round(value) for value in saved.tolist())
        if saved != _pattern_values(self.pattern):
            raise ValueError(
                "the checkpoint has (--num-directions, --words-per-direction, --middle-to-side) = "
                f"{saved}, this run {_pattern_values(self.pattern)}"
            )
        size = state_dict[f"{name}.embed_tokens.weight"].size(0)
        if size != self.embed_tokens.num_embeddings:
            raise ValueError(
                f"the checkpoint has a target dictionary of {size} entries, the data folder one of "
                f"{self.embed_tokens.num_embeddings}: use the dictionary that the model was trained with"
            )
        return super().upgrade_state_dict_named(state_dict, name)


def _pattern_values(pattern: Interleaving) -> tuple[int, int, int]:
    return pattern.num_directions, pattern.words_per_direction, int(pattern.middle_to_side)


@register_model("ibdecoder", dataclass=IBDecoderConfig)
class IBDecoderModel(TransformerModelBase):
    """Transformer encoder and interleaved decoder; trains with fairseq's criteria, decodes in ⌈(n+1)/z⌉ steps."""

    #: What ``translation_interleaved`` asks of a model.
    generates_interleaved = True

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        gen_parser_from_dataclass(parser, IBDecoderConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "IBDecoderModel":
        """Build from a flat configuration; the pattern comes from the task.

        Raises:
            ValueError: if the task does not interleave targets.
        """
        pattern = getattr(task, "interleaving", None)
        if pattern is None:
            raise ValueError(
                f"an ibdecoder needs --task translation_interleaved, not {type(task).__name__} "
                "(fairseq's commands take 'translation' when --task is missing)"
            )
        flat = Namespace(**{name: getattr(cfg, name) for name in IBDecoderConfig.__dataclass_fields__})
        flat.decoder_input_dim = flat.decoder_output_dim = flat.decoder_embed_dim
        flat.pattern = pattern
        transformer = TransformerConfig.from_namespace(flat)
        model = super().build_model(transformer, task)
        model.cfg = cfg
        return model

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Embedding) -> InterleavedDecoder:
        return InterleavedDecoder(
            cfg, tgt_dict, embed_tokens, cfg.pattern, cfg.decoder_attention_mask, cfg.decoder_word_positions
        )

    def get_targets(self, sample: dict[str, Any], net_output: Any) -> Tensor:
        """The target in generation order (B, L): what the decoder predicts."""
        return sample["target_interleaved"]

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Also take ``--bf16``, which stock fairseq-generate and fairseq-interactive pass over."""
        if cfg.common.bf16:
            self.bfloat16()
        super().prepare_for_inference_(cfg)


def _set(args: Namespace, **defaults: Any) -> None:
    for name, value in defaults.items():
        setattr(args, name, getattr(args, name, value))


@register_model_architecture("ibdecoder", "ibdecoder_tiny")
def ibdecoder_tiny(args: Namespace) -> None:
    """2+2 layers, d = 64: for tests."""
    _set(
        args,
        encoder_embed_dim=64,
        encoder_ffn_embed_dim=128,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_embed_dim=64,
        decoder_ffn_embed_dim=128,
        decoder_layers=2,
        decoder_attention_heads=2,
    )


@register_model_architecture("ibdecoder", "ibdecoder_iwslt_de_en")
def ibdecoder_iwslt_de_en(args: Namespace) -> None:
    """The sizes of fairseq's ``transformer_iwslt_de_en``."""
    _set(args, encoder_ffn_embed_dim=1024, encoder_attention_heads=4)
    _set(args, decoder_ffn_embed_dim=1024, decoder_attention_heads=4)


@register_model_architecture("ibdecoder", "ibdecoder_wmt_en_de")
def ibdecoder_wmt_en_de(args: Namespace) -> None:
    """Transformer base, the paper's setting (Appendix A): the defaults."""


@register_model_architecture("ibdecoder", "ibdecoder_wmt_en_de_big")
def ibdecoder_wmt_en_de_big(args: Namespace) -> None:
    """Transformer big, the sizes of fairseq's ``transformer_vaswani_wmt_en_de_big``."""
    _set(
        args,
        encoder_embed_dim=1024,
        encoder_ffn_embed_dim=4096,
        encoder_attention_heads=16,
        decoder_embed_dim=1024,
        decoder_ffn_embed_dim=4096,
        decoder_attention_heads=16,
        dropout=0.3,
    )
