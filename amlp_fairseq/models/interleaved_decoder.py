"""IBDecoder: Transformer whose decoder writes several words per step, in several directions.

Source: Zhang, Titov and Sennrich, "Fast Interleaved Bidirectional Sequence Generation" (2020). One implementation
covers every number of directions h and words per direction c: autoregressive (1, 1), semi-autoregressive (1, K),
IBDecoder (2, 1), IBDecoder + SA (2, c), IMDecoder (4, 1). h and c are options of the task; all other options are a
Transformer's. Notation: docs/glossary.md.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from amlp_fairseq.attention.registry import ATTENTIONS
from amlp_fairseq.compat.registration import register_model
from amlp_fairseq.models.interfaces import InterleavedTask
from amlp_fairseq.models.plugin_transformer import (
    ModelConfig,
    PluginDecoder,
    PluginTransformerConfig,
    PluginTransformerModel,
    register_sizes,
)
from amlp_fairseq.models.signed_positions import SignedSinusoidalPositionalEmbedding
from amlp_fairseq.ops.generation_order import (
    ATTENTION_MASKS,
    GenerationOrder,
    attention_mask,
    slot_directions,
    word_positions,
)

WORD_POSITIONS = ("interleaved", "vanilla")


@dataclass
class IBDecoderConfig(PluginTransformerConfig):
    """Options of ``ibdecoder``: options of the plugin's Transformer, and the ablations of the paper's Table 2."""

    #: The decoder always has signed sinusoidal positions.
    UNSUPPORTED = frozenset({"decoder_learned_pos", "no_token_positional_embeddings"})

    decoder_attention_mask: ChoiceEnum(ATTENTION_MASKS) = field(  # type: ignore[valid-type]
        default="interleaved",
        metadata={"help": "mask of the self-attention: Eq. 4; 'vanilla': M(1, 1); or words of its own direction only"},
    )
    decoder_word_positions: ChoiceEnum(WORD_POSITIONS) = field(  # type: ignore[valid-type]
        default="interleaved",
        metadata={"help": "Eq. 7 and 10; 'vanilla': 0, 1, 2, … in the order of generation"},
    )


class InterleavedDecoder(PluginDecoder):
    """Transformer decoder over slots in generation order (Section 4).

    The first z inputs are start symbols: zero vectors plus their positions; their tokens are ignored. An incremental
    state holds the inputs consumed so far, and a call may add any number of whole steps.

    Args:
        cfg: configuration of the Transformer, with h and c in ``order``.
        dictionary: target dictionary.
        embed_tokens: input embedding.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        order: GenerationOrder = cfg.order
        mask, positions = cfg.options.decoder_attention_mask, cfg.options.decoder_word_positions
        # Directions that take turns with one word a step are one to the attentions.
        directions = order.num_directions if order.words_per_direction else 1
        super().__init__(cfg, dictionary, embed_tokens, words_per_step=order.words_per_step, directions=directions)
        if mask != "interleaved" and not all(layer.self_attn.takes_mask for layer in self.layers):
            supporting = ", ".join(name for name, attention in ATTENTIONS.items() if attention.takes_mask)
            raise ValueError(
                f"--decoder-attention-mask {mask} is for {supporting}; "
                f"--decoder-self-attention-type {cfg.options.decoder_self_attention_type} always has the mask of Eq. 4"
            )
        if mask == "independent-directions" and order.words_per_direction == 0:
            raise ValueError(f"--decoder-attention-mask {mask} needs --words-per-direction of at least 1, not 0")
        self.order, self.starts = order, order.words_per_step
        self.mask = mask
        self.embed_positions = None
        self.embed_word_positions = SignedSinusoidalPositionalEmbedding(cfg.decoder.embed_dim)
        # Number of directions with separate positions (Eq. 5 and 7); vanilla positions do not distinguish directions.
        self.position_directions = 1 if positions == "vanilla" else order.num_directions
        self.embed_directions = None
        if self.position_directions > 2:
            self.embed_directions = nn.Embedding(order.num_directions, cfg.decoder.embed_dim)
            nn.init.normal_(self.embed_directions.weight, mean=0, std=cfg.decoder.embed_dim**-0.5)
        # Saved in checkpoints, to refuse resuming with another order; float, because --store-ema scales all entries.
        self.register_buffer("interleaving", torch.tensor(_order_values(order), dtype=torch.float))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        words = self.embed_words(tokens[:, tokens.size(1) - len(positions) :], positions)
        return words + self.encode_positions(positions).to(words)

    def encode_positions(self, positions: Tensor) -> Tensor:
        x = self.embed_word_positions(word_positions(positions, self.position_directions))
        if self.embed_directions is not None:
            x = x + self.embed_directions(slot_directions(positions, self.position_directions))
        return x

    def attention_mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return attention_mask(queries, keys, self.order, self.mask)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """Refuse checkpoints of another generation order or dictionary.

        Raises:
            ValueError: naming the difference.
        """
        saved = state_dict.get(f"{name}.interleaving")
        if saved is None:
            raise ValueError(
                "the checkpoint does not hold an ibdecoder: it has no order of generation (--finetune-from-model takes "
                "what fits)"
            )
        saved, expected = tuple(round(value) for value in saved.tolist()), _order_values(self.order)
        if saved[:3] != expected[:3]:
            raise ValueError(
                "the checkpoint has (--num-directions, --words-per-direction, --middle-to-side) = "
                f"{saved[:3]}, this run {expected[:3]}"
            )
        if saved != expected:
            raise ValueError(
                f"the checkpoint has --num-directions {saved[0]} with an old order of words, not the paper's (Eq. 9), "
                "which is not supported any more: train it again"
            )
        size = state_dict[f"{name}.embed_tokens.weight"].size(0)
        if size != self.embed_tokens.num_embeddings:
            raise ValueError(
                f"the checkpoint has a target dictionary of {size} entries, the data folder one of "
                f"{self.embed_tokens.num_embeddings}: use the dictionary that the model was trained with"
            )
        return super().upgrade_state_dict_named(state_dict, name)


def _order_values(order: GenerationOrder) -> tuple[int, ...]:
    """h, c and ``middle_to_side``; for h > 2 also 1, which marks the order of Eq. 9 (old versions had another
    order)."""
    values = order.num_directions, order.words_per_direction, int(order.middle_to_side)
    return values if order.num_directions <= 2 else (*values, 1)


@register_model("ibdecoder", dataclass=IBDecoderConfig)
class IBDecoderModel(PluginTransformerModel):
    """Transformer encoder and interleaved decoder, which is trained with fairseq's criteria and decodes in ⌈(n+1)/z⌉
    steps."""

    CONFIG = IBDecoderConfig

    @classmethod
    def transformer_config(cls, cfg: ModelConfig, task: FairseqTask) -> TransformerConfig:
        """Configuration of encoder and decoder, with the generation order of the task.

        Raises:
            ValueError: for a task other than ``translation_interleaved``.
        """
        if not isinstance(task, InterleavedTask):
            raise ValueError(
                "an ibdecoder needs --task translation_interleaved (fairseq's commands take 'translation' when --task "
                "is missing)"
            )
        result = super().transformer_config(cfg, task)
        result.order = task.order
        return result

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> InterleavedDecoder:
        return InterleavedDecoder(cfg, tgt_dict, embed_tokens)

    def get_targets(self, sample: dict[str, Any], net_output: object) -> Tensor:
        """Target in generation order, (B, L)."""
        return sample["target_interleaved"]


register_sizes("ibdecoder")
