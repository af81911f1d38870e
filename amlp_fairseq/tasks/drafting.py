"""The drafts that the options of ``translation_interleaved`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils, utils

from amlp_fairseq.compat.internals import GenerationConfig
from amlp_fairseq.search.drafts import Drafter, MemoryDrafter, ModelDrafter, SourceDrafter

#: What ``--draft`` may be.
DRAFTS = ("source",)


def build_drafter(task: Any, models: Sequence[Any]) -> Drafter | None:
    """What makes the drafts for a task's models; None if no option asks for one.

    Raises:
        ValueError: if several options do, for a file or a checkpoint that cannot be read, and for a checkpoint with
            other dictionaries.
    """
    cfg = task.cfg
    given = {
        f"--{name.replace('_', '-')}": value
        for name in ("draft_path", "draft", "draft_file")
        if (value := getattr(cfg, name)) is not None
    }
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} cannot be given together: a sentence has one draft")
    if cfg.draft is not None:
        return SourceDrafter(task.source_dictionary, task.target_dictionary)
    if cfg.draft_file is not None:
        return MemoryDrafter(cfg.draft_file, task.target_dictionary)
    return None if cfg.draft_path is None else _model_drafter(cfg, task, models[0])


def _model_drafter(cfg: Any, task: Any, verifier: Any) -> ModelDrafter:
    overrides = {"data": cfg.data, "decode_dtype": cfg.decode_dtype}
    (model,), saved, drafting = checkpoint_utils.load_model_ensemble_and_task(
        utils.split_paths(cfg.draft_path), arg_overrides=overrides
    )
    for side in ("source", "target"):
        symbols, own = (getattr(each, f"{side}_dictionary").symbols for each in (drafting, task))
        if symbols != own:
            raise ValueError(f"--draft-path {cfg.draft_path} has another {side} dictionary than --path")
    parameter = next(verifier.parameters())
    model.prepare_for_inference_(saved)
    model.to(device=parameter.device, dtype=parameter.dtype)
    return ModelDrafter(drafting, model, drafting.build_generator([model], GenerationConfig(beam=1)))
