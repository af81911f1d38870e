"""The registry of attentions: whatever lets the positions of a Transformer layer see each other or the source.

A new one is a file in this folder with a class under ``@register_attention(name)``: a ``MultiHeadAttention`` (see
``multihead.py``), or a ``SelfAttention`` (see ``base.py``) where there are no queries, keys and values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

#: What an attention may have to do. Where the decoder writes from left to right, its output at a position must not
#: depend on later inputs: they are unknown when decoding. For "causal cross" that is about the queries alone.
PATTERNS = ("noncausal self", "causal self", "noncausal cross", "causal cross")


@dataclass(frozen=True)
class AttentionSpec:
    """Where an attention stands in a model, and what it has to do there.

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


#: The attentions by name.
ATTENTIONS: dict[str, Any] = {}
#: Their options by name.
OPTIONS: dict[str, dataclasses.Field[Any]] = {}


def register_attention(name: str, options: type | None = None) -> Callable[[Any], Any]:
    """Register a class under a name for the options ``--<side>-self-attention-type`` and ``…-cross-attention-type``.

    Args:
        name: the value of these options.
        options: a dataclass of the attention's own options, as fairseq's models have them. All models have them on the
            command line, those without an encoder all but ``encoder_…``. Attentions share an option by a common base.

    Raises:
        ValueError: if the name is taken, or an option by another dataclass.
    """

    def register(cls: Any) -> Any:
        if name in ATTENTIONS:
            raise ValueError(f"the attention name {name!r} is taken")
        for option in () if options is None else dataclasses.fields(options):
            if OPTIONS.setdefault(option.name, option) is not option:
                raise ValueError(f"the attention option {option.name!r} is taken")
        ATTENTIONS[name] = cls
        return cls

    return register


def attention_options(encoder: bool) -> Any:
    """A dataclass of the attentions' options: those of the encoder (``encoder_…``), or all others."""
    return dataclasses.make_dataclass(
        "EncoderAttentionOptions" if encoder else "AttentionOptions",
        [
            (name, option.type, dataclasses.field(**_defaults(option), metadata=option.metadata))
            for name, option in OPTIONS.items()
            if name.startswith("encoder_") == encoder
        ],
    )


def _defaults(option: dataclasses.Field[Any]) -> Any:
    return {"default": option.default, "default_factory": option.default_factory}


def supporting(*patterns: str) -> list[str]:
    """Names of the attentions that can do one of the patterns at least."""
    return sorted(name for name, cls in ATTENTIONS.items() if not set(patterns).isdisjoint(cls.patterns))


def build_attention(spec: AttentionSpec) -> nn.Module:
    """The attention that ``--<side>-self-attention-type`` or ``--<side>-cross-attention-type`` asks for.

    Raises:
        ValueError: if it cannot do what the spec asks for.
    """
    option = "cross_attention_type" if spec.cross else "self_attention_type"
    name = spec.option(option)
    able = supporting(spec.pattern)
    if name not in able:
        flag = f"--{spec.side}-{option.replace('_', '-')}"
        raise ValueError(f"{flag} {name}: it cannot be {spec.pattern} attention; choose one of {', '.join(able)}")
    return ATTENTIONS[name](spec)


def replace_attentions(layers: nn.ModuleList, options: Any, side: str, words_per_step: int = 1) -> None:
    """Give the layers of a fairseq encoder or autoregressive decoder the attentions that the options name.

    Raises:
        ValueError: from the attention, if it cannot do what is asked for.
    """
    for i, layer in enumerate(layers):
        own = "causal self" if side == "decoder" else "noncausal self"
        layer.self_attn = build_attention(AttentionSpec(options, side, i, own, words_per_step))
        if getattr(layer, "encoder_attn", None) is not None:
            layer.encoder_attn = build_attention(AttentionSpec(options, side, i, "causal cross", words_per_step))
