"""Models and attentions that the engine has. Small ones of each kind are asked to describe themselves."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import Field, fields
from enum import Enum
from typing import Any

from fairseq.data import Dictionary

from amlp_fairseq.attention.registry import ATTENTIONS, OPTIONS, attention_options
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.compat.internals import MODEL_REGISTRY
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.models.description import describe, describe_attention
from amlp_fairseq.models.nat_model import NATModel
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask
from amlp_fairseq.tasks.translation_interleaved import TranslationInterleavedConfig, TranslationInterleavedTask

_SIZES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"embed_dim": 8, "ffn_embed_dim": 8, "layers": 1, "attention_heads": 2}.items()
} | {f"{side}_kernel_size_list": [3] for side in ("encoder", "decoder")}
_POSITIONS = {"max_source_positions": 8, "max_target_positions": 8}


def attention(name: str, pattern: str, **options: object) -> bool:
    """True if the engine has an attention with these options besides the defaults, or if they do not go with it."""
    defaults = {key: value for encoder in (True, False) for key, value in vars(attention_options(encoder)()).items()}
    dropouts = {"attention_dropout": 0.0, "activation_dropout": 0.0}
    side = "encoder" if pattern == "noncausal self" else "decoder"
    given = Namespace(**{**defaults, **_SIZES, **_POSITIONS, **dropouts, **options})
    return _has(lambda: ATTENTIONS[name](AttentionSpec(given, side, 0, pattern)), describe_attention)


def attentions() -> dict[str, dict[str, bool]]:
    """The patterns that every attention supports, True where the engine has it."""
    return {
        name: {pattern: attention(name, pattern) for pattern in cls.patterns}
        for name, cls in sorted(ATTENTIONS.items())
    }


def attention_values() -> list[str]:
    """The values of the attentions' options with which PyTorch decodes what is in the engine otherwise."""
    here = [(name, pattern) for name, places in attentions().items() for pattern, found in places.items() if found]
    return [
        _shown(option, value)
        for option in OPTIONS.values()
        for value in _values(option)
        if not all(attention(*place, **{option.name: value}) for place in here)
    ]


def models() -> dict[str, list[str] | None]:
    """Of every model of the plugin that translates text the values of its own options, and of the Transformer's, with
    which PyTorch decodes; None if it always does."""
    result: dict[str, list[str] | None] = {}
    for name, cls in sorted(MODEL_REGISTRY.items()):
        config = getattr(cls, "CONFIG", None)
        if not is_ours(cls) or config is None or not issubclass(config, PluginTransformerConfig):
            continue
        if not _model(cls):
            result[name] = None
            continue
        shared = {} if config is PluginTransformerConfig else PluginTransformerConfig.__dataclass_fields__
        own = [option for option in fields(config) if option.name not in {*shared, *OPTIONS, *config.UNSUPPORTED}]
        result[name] = [
            _shown(option, value)
            for option in own
            if not option.name.endswith("_attention_type")
            for value in _values(option)
            if not _model(cls, **{option.name: value})
        ]
    return result


def _model(cls: Any, **options: object) -> bool:
    """As ``attention``."""
    words = Dictionary()
    given = {**_SIZES, **_POSITIONS, "label_smoothing": 0.1, **options}
    config = cls.CONFIG(**{name: given[name] for name in given if name in cls.CONFIG.__dataclass_fields__})
    task: Any
    if issubclass(cls, NATModel):
        task = TranslationCMLMCTask(TranslationCMLMCConfig(), words, words)
    else:
        task = TranslationInterleavedTask(TranslationInterleavedConfig(), words, words)
    return _has(lambda: cls.build_model(config, task), describe)


def _has(build: Callable[[], Any], describe: Callable[[Any], object]) -> bool:
    try:
        built = build()
    except ValueError:
        return True
    try:
        describe(built)
    except UnsupportedError:
        return False
    return True


def _values(option: Field[Any]) -> list[Any]:
    """The values of an option besides its default, if it is a switch or a choice."""
    for kind in (option.type, *getattr(option.type, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, Enum):
            return [member.value for member in kind if member.value != option.default]
    return [not option.default] if isinstance(option.default, bool) else []


def _shown(option: Field[Any], value: object) -> str:
    flag = "--" + option.name.replace("_", "-")
    return f"`{flag}`" if value is True else f"`{flag} {value}`"
