"""Registering with fairseq under a name of one's own.

fairseq's ``register_model`` and ``register_task`` answer a name that is taken with the class that has it, without a
word. These decorators raise instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq import models, tasks
from fairseq.dataclass import FairseqDataclass

Decorator = Callable[[type], type]


def register_model(name: str, dataclass: type[FairseqDataclass] | None = None) -> Decorator:
    """``fairseq.models.register_model`` that raises ValueError when the name is taken. Without a dataclass the model
    gets the options of the whole command line, and its architectures are to be registered."""
    return _unless_taken("model", name, models.MODEL_REGISTRY, models.register_model(name, dataclass=dataclass))


def register_task(name: str, dataclass: type[FairseqDataclass]) -> Decorator:
    """``fairseq.tasks.register_task`` that raises ValueError when the name is taken."""
    return _unless_taken("task", name, tasks.TASK_REGISTRY, tasks.register_task(name, dataclass=dataclass))


def is_ours(cls: type) -> bool:
    """True if a task or model is the plugin's."""
    return cls.__module__.split(".")[0] == __name__.split(".")[0]


def _unless_taken(kind: str, name: str, registry: dict[str, Any], decorator: Decorator) -> Decorator:
    if name in registry:
        owner = registry[name]
        raise ValueError(f"the {kind} name {name!r} is taken by {owner.__module__}.{owner.__qualname__}")
    return decorator
