"""The drafts that the options of ``translation_interleaved`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amlp_fairseq.compat.internals import GenerationConfig
from amlp_fairseq.search.drafts import Drafter, MemoryDrafter, ModelDrafter, SourceDrafter
from amlp_fairseq.tasks.auxiliary_models import load_helper

#: What ``--draft`` may be.
DRAFTS = ("source", "none")


def given_drafts(cfg: Any) -> list[str]:
    """The options of a task that ask for drafts, as they are given on the command line."""
    names = ("draft_path", "draft", "draft_file")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(cfg, name) is not None]


def build_drafter(task: Any, models: Sequence[Any]) -> Drafter | None:
    """What makes the drafts for a task's models; None if no option asks for one.

    Raises:
        ValueError: if several options do, for a file or a checkpoint that cannot be read, and for a checkpoint with
            other dictionaries.
    """
    cfg, given = task.cfg, given_drafts(task.cfg)
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} cannot be given together: a sentence has one draft")
    if cfg.draft is not None:
        return SourceDrafter(task.source_dictionary, task.target_dictionary)
    if cfg.draft_file is not None:
        return MemoryDrafter(cfg.draft_file, task.target_dictionary)
    return None if cfg.draft_path is None else _model_drafter(cfg, models[0])


def _fastest(model: Any) -> GenerationConfig:
    """The generation options of a drafting model's fastest search."""
    refines = hasattr(model, "initialize_output_tokens")
    return GenerationConfig(iter_decode_max_iter=0) if refines else GenerationConfig(beam=1)


def _model_drafter(cfg: Any, verifier: Any) -> ModelDrafter:
    drafting, model = load_helper("--draft-path", cfg.draft_path, cfg, verifier)
    return ModelDrafter(drafting, model, drafting.build_generator([model], _fastest(model)))
