"""Registry of attentions: modules by which a position of a Transformer layer depends on other positions or the source.

To add an attention, write a file in this folder, import it in ``__init__.py`` and decorate its class with
``@register_attention(name)``. The class is a ``MultiHeadAttention`` (``multihead.py``), or a ``SelfAttention``
(``base.py``) if it has no queries, keys and values. Notation: docs/glossary.md.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from amlp_fairseq.attention.base import Attention
from amlp_fairseq.attention.spec import AttentionSpec

A = TypeVar("A", bound=Attention)

#: Attention classes by name.
ATTENTIONS: dict[str, type[Attention]] = {}
#: Options of the attentions by name.
OPTIONS: dict[str, dataclasses.Field[Any]] = {}


def register_attention(name: str, options: type | None = None) -> Callable[[type[A]], type[A]]:
    """Register a class as a value of ``--<side>-self-attention-type`` and ``--<side>-cross-attention-type``.

    Args:
        name: value of these options.
        options: dataclass of the attention's options, like the configuration of a fairseq model. Every model has these
            options on the command line, except ``encoder_…`` in models without an encoder. Attentions share options
            through a common base class.

    Raises:
        ValueError: if the name is taken, or the name of an option is taken by another dataclass.
    """

    def register(cls: type[A]) -> type[A]:
        if name in ATTENTIONS:
            raise ValueError(f"the attention name {name!r} is taken")
        for option in () if options is None else dataclasses.fields(options):
            if OPTIONS.setdefault(option.name, option) is not option:
                raise ValueError(f"the attention option {option.name!r} is taken")
        ATTENTIONS[name], cls.name = cls, name
        return cls

    return register


def attention_options(encoder: bool) -> type:
    """Dataclass of the attentions' options: with ``encoder`` the options ``encoder_…``, else all other options."""
    return dataclasses.make_dataclass(
        "EncoderAttentionOptions" if encoder else "AttentionOptions",
        [
            (name, option.type, dataclasses.field(**_defaults(option), metadata=option.metadata))
            for name, option in OPTIONS.items()
            if name.startswith("encoder_") == encoder
        ],
    )


def _defaults(option: dataclasses.Field[Any]) -> dict[str, Any]:
    """Keyword arguments of ``dataclasses.field`` with the default of an option."""
    return {"default": option.default, "default_factory": option.default_factory}


def supporting(*patterns: str) -> list[str]:
    """Names of the attentions that support at least one of the patterns."""
    return sorted(name for name, cls in ATTENTIONS.items() if not set(patterns).isdisjoint(cls.patterns))


def build_attention(spec: AttentionSpec, option: str | None = None) -> Attention:
    """Create the attention named by an option.

    Args:
        spec: position and use of the attention.
        option: name of the option; None: ``<side>_self_attention_type`` or ``<side>_cross_attention_type``.

    Raises:
        ValueError: if the attention does not support the spec's pattern.
    """
    option = option or f"{spec.side}_{'cross' if spec.cross else 'self'}_attention_type"
    name = getattr(spec.options, option)
    supported = supporting(spec.pattern)
    if name not in supported:
        flag = f"--{option.replace('_', '-')}"
        raise ValueError(f"{flag} {name}: it cannot be {spec.pattern} attention; choose one of {', '.join(supported)}")
    return ATTENTIONS[name](spec)


def replace_attentions(
    layers: nn.ModuleList, options: Namespace, side: str, words_per_step: int = 1, directions: int = 1
) -> None:
    """Replace the attentions in the layers of a fairseq encoder or autoregressive decoder by the attentions named in
    the options.

    Raises:
        ValueError: if an attention does not support its pattern.
    """
    for i, layer in enumerate(layers):
        pattern = "causal self" if side == "decoder" else "noncausal self"
        layer.self_attn = build_attention(AttentionSpec(options, side, i, pattern, words_per_step, directions))
        if getattr(layer, "encoder_attn", None) is not None:
            layer.encoder_attn = build_attention(AttentionSpec(options, side, i, "causal cross", words_per_step))
