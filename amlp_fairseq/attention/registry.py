"""The registry of attentions: whatever lets the positions of a Transformer layer see each other or the source.

A new one is a file in this folder with a class under ``@register_attention(name)``: a ``MultiHeadAttention`` (see
``multihead.py``), or a ``SelfAttention`` where there are no queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

#: What an attention may have to do. Where the decoder writes from left to right, its output at a position must not
#: depend on later inputs: they are unknown when decoding. For "causal cross" that is about the queries alone.
PATTERNS = ("noncausal self", "causal self", "noncausal cross", "causal cross")


@dataclass(frozen=True)
class Place:
    """Where an attention stands in a model.

    Attributes:
        options: the model's options by their names on the command line.
        side: ``encoder`` or ``decoder``.
        layer: its layer, from 0.
        pattern: one of ``PATTERNS``.
        words_per_step: z; under "causal self" position i sees j iff ⌊i/z⌋ ≥ ⌊j/z⌋ (IBDecoder, Eq. 4). 1 is plain
            causality.
    """

    options: Any
    side: str
    layer: int
    pattern: str
    words_per_step: int = 1

    @property
    def causal(self) -> bool:
        return self.pattern.startswith("causal")

    @property
    def cross(self) -> bool:
        return self.pattern.endswith("cross")

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


def check_whole_steps(positions: int, step: int) -> None:
    """Raise ValueError unless the new positions of incremental decoding are whole steps."""
    if positions % step:
        raise ValueError(f"incremental decoding takes whole steps of {step} positions, not {positions}")


class SelfAttention(nn.Module):
    """Self-attention without queries, keys and values; subclasses write ``mix`` and say their ``patterns``.

    Built from a ``Place``; raises ValueError where it cannot stand. ``num_heads`` and ``head_dim`` are for fairseq's
    decoder layer. With a decoding state it takes any number of new words per call, finds its state in
    ``incremental_state`` and has ``reorder_incremental_state``.
    """

    patterns: tuple[str, ...] = ("noncausal self", "causal self")
    num_heads: int
    head_dim: int
    #: Whether it obeys ``attn_mask``, and needs it to be causal.
    takes_mask = False
    #: Whether its decoding state is tensors of the same shapes at every step, all zero before the first.
    fixed_state = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        query_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """What the layers call: ``mix`` of ``query``; ``key`` and ``value`` are ``query`` again."""
        return self.mix(query, key_padding_mask, incremental_state), None

    def mix(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict[str, Any] | None) -> Tensor:
        """Self-attention over ``x``.

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


ATTENTIONS: dict[str, Any] = {}


def register_attention(name: str) -> Callable[[Any], Any]:
    """Register a class under a name for the options ``--<side>-self-attention-type`` and ``…-cross-attention-type``."""

    def register(cls: Any) -> Any:
        if name in ATTENTIONS:
            raise ValueError(f"the attention name {name!r} is taken")
        ATTENTIONS[name] = cls
        return cls

    return register


def supporting(*patterns: str) -> list[str]:
    """Names of the attentions that can do one of the patterns at least."""
    return sorted(name for name, cls in ATTENTIONS.items() if not set(patterns).isdisjoint(cls.patterns))


def build_attention(place: Place) -> nn.Module:
    """The attention that ``--<side>-self-attention-type`` or ``--<side>-cross-attention-type`` asks for.

    Raises:
        ValueError: if it cannot do what its place needs.
    """
    option = "cross_attention_type" if place.cross else "self_attention_type"
    name = place.option(option)
    able = supporting(place.pattern)
    if name not in able:
        flag = f"--{place.side}-{option.replace('_', '-')}"
        raise ValueError(f"{flag} {name}: it cannot be {place.pattern} attention; choose one of {', '.join(able)}")
    return ATTENTIONS[name](place)


def replace_attentions(layers: nn.ModuleList, options: Any, side: str, words_per_step: int = 1) -> None:
    """Give the layers of a fairseq encoder or autoregressive decoder the attentions that the options name.

    Raises:
        ValueError: from the attention, if it cannot stand there.
    """
    for i, layer in enumerate(layers):
        own = "causal self" if side == "decoder" else "noncausal self"
        layer.self_attn = build_attention(Place(options, side, i, own, words_per_step))
        if getattr(layer, "encoder_attn", None) is not None:
            layer.encoder_attn = build_attention(Place(options, side, i, "causal cross", words_per_step))
