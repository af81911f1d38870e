"""The registry of self-attentions: whatever lets the words of a sequence see each other in a Transformer layer.

A new one is a file in this folder with a class under ``@register_attention(name)`` that follows ``SelfAttention``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairseq.modules import MultiheadAttention
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """Where an attention stands in a model.

    Attributes:
        options: the model's options by their names on the command line.
        side: ``encoder`` (sees the whole sequence) or ``decoder`` (causal).
        layer: its layer, from 0.
        words_per_step: z; in a decoder position i sees j iff ⌊i/z⌋ ≥ ⌊j/z⌋ (IBDecoder, Eq. 4). 1 is plain causality.
    """

    options: Any
    side: str
    layer: int
    words_per_step: int = 1

    def option(self, name: str) -> Any:
        """The value of ``--<side>-<name>``."""
        return getattr(self.options, f"{self.side}_{name}")

    @property
    def kernel_size(self) -> int:
        """The layer's entry of ``--<side>-kernel-size-list``; a list of one entry is for all layers.

        Raises:
            ValueError: if the list is not as long as the layers are many.
        """
        sizes, layers = list(self.option("kernel_size_list")), self.option("layers")
        if len(sizes) == 1:
            sizes = sizes * layers
        if len(sizes) != layers:
            raise ValueError(
                f"--{self.side}-kernel-size-list {sizes} has {len(sizes)} entries, --{self.side}-layers is {layers}"
            )
        if sizes[self.layer] < 1:
            raise ValueError(f"--{self.side}-kernel-size-list {sizes} has an entry below 1")
        return sizes[self.layer]


class SelfAttention(nn.Module):
    """The protocol, which fairseq's MultiheadAttention follows as well; subclasses write ``mix``.

    Built from a ``Place``; raises ValueError where it cannot stand. ``num_heads`` and ``head_dim`` are for fairseq's
    decoder layer. An attention with a decoding state takes any number of new words per call, finds its state in
    ``incremental_state`` and has ``reorder_incremental_state``.
    """

    num_heads: int
    head_dim: int
    #: Whether it needs ``attn_mask`` to be causal, and is not so by construction.
    takes_mask = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """What fairseq's layers call: ``mix`` of ``query``; ``key`` and ``value`` are ``query`` again."""
        return self.mix(query, key_padding_mask, incremental_state), None

    def mix(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict[str, Any] | None) -> Tensor:
        """Self-attention over ``x``, causal in a decoder.

        Args:
            x: inputs (T, B, C); in incremental decoding those that are new.
            padding_mask: True for padding, (B, T).
            incremental_state: fairseq's decoding state.

        Returns:
            (T, B, C).
        """
        raise NotImplementedError

    def _get_input_buffer(self, incremental_state: dict[str, Any] | None) -> dict[str, Any]:
        """fairseq's decoder layer asks for it, and does nothing with it."""
        return {}


ATTENTIONS: dict[str, Callable[[Place], nn.Module]] = {}


def register_attention(name: str) -> Callable[[Any], Any]:
    """Register a class under a name for ``--encoder-self-attention-type`` and ``--decoder-self-attention-type``."""

    def register(cls: Any) -> Any:
        if name in ATTENTIONS:
            raise ValueError(f"the attention name {name!r} is taken")
        ATTENTIONS[name] = cls
        return cls

    return register


@register_attention("softmax")
class SoftmaxAttention(MultiheadAttention):
    """fairseq's multi-head attention."""

    takes_mask = True

    def __init__(self, place: Place) -> None:
        super().__init__(
            place.option("embed_dim"),
            place.option("attention_heads"),
            dropout=place.options.attention_dropout,
            self_attention=True,
        )


def replace_self_attention(layers: nn.ModuleList, options: Any, side: str, words_per_step: int = 1) -> None:
    """Give the layers of a fairseq encoder or decoder the attention of ``--<side>-self-attention-type``.

    Raises:
        ValueError: from the attention, if it cannot stand there.
    """
    for i, layer in enumerate(layers):
        place = Place(options, side, i, words_per_step)
        layer.self_attn = ATTENTIONS[place.option("self_attention_type")](place)
