"""The registry of attentions: whatever lets the positions of a Transformer layer see each other or the source.

A new one is a file in this folder, imported in ``__init__.py``, with a class under ``@register_attention(name)``: a
``MultiHeadAttention`` (see ``multihead.py``), or a ``SelfAttention`` (see ``base.py``) if it has no queries, keys and
values. Notation: docs/glossary.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

#: The uses of an attention. "causal": its output at a position must not depend on later inputs, which are unknown when
#: decoding. For "causal cross" this concerns the queries only.
PATTERNS = ("noncausal self", "causal self", "noncausal cross", "causal cross")


@dataclass(frozen=True)
class AttentionSpec:
    """Which layer of a model an attention belongs to, and which use it has there.

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

    def count(self, name: str) -> Any:
        """The value of an option that is a number, None where there is none.

        Raises:
            ValueError: if it is below 1.
        """
        value = getattr(self.options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value} must be at least 1")
        return value

    @property
    def kernel_size(self) -> int:
        """The layer's entry of ``--<side>-kernel-size-list``; a list of one entry is for all layers.

        Raises:
            ValueError: if the list does not have as many entries as there are layers, or has one below 1.
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
        options: a dataclass of the attention's own options, like those of fairseq's models. All models have them on the
            command line, models without an encoder all but ``encoder_…``. A common base lets attentions share options.

    Raises:
        ValueError: if the name is taken, or an option's name by another dataclass.
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
    """Names of the attentions that support at least one of the patterns."""
    return sorted(name for name, cls in ATTENTIONS.items() if not set(patterns).isdisjoint(cls.patterns))


def build_attention(spec: AttentionSpec, option: str | None = None) -> Any:
    """The ``Attention`` that an option asks for.

    Args:
        spec: where it stands.
        option: the option's name; None: ``<side>_self_attention_type`` or ``<side>_cross_attention_type``.

    Raises:
        ValueError: if it does not support what the spec asks for.
    """
    option = option or f"{spec.side}_{'cross' if spec.cross else 'self'}_attention_type"
    name = getattr(spec.options, option)
    able = supporting(spec.pattern)
    if name not in able:
        flag = f"--{option.replace('_', '-')}"
        raise ValueError(f"{flag} {name}: it cannot be {spec.pattern} attention; choose one of {', '.join(able)}")
    return ATTENTIONS[name](spec)


def replace_attentions(layers: nn.ModuleList, options: Any, side: str, words_per_step: int = 1) -> None:
    """Give the layers of a fairseq encoder or autoregressive decoder the attentions that the options name.

    Raises:
        ValueError: from the attention, if it does not support what is asked for.
    """
    for i, layer in enumerate(layers):
        own = "causal self" if side == "decoder" else "noncausal self"
        layer.self_attn = build_attention(AttentionSpec(options, side, i, own, words_per_step))
        if getattr(layer, "encoder_attn", None) is not None:
            layer.encoder_attn = build_attention(AttentionSpec(options, side, i, "causal cross", words_per_step))
