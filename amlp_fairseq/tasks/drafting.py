"""The drafts of the options of ``translation_interleaved``."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.nat import FairseqNATModel
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig

from amlp_fairseq.compat.internals import GenerationConfig
from amlp_fairseq.search.drafts import Drafter, SourceDrafter, TranslationMemoryDrafter
from amlp_fairseq.search.model_drafter import ModelDrafter
from amlp_fairseq.tasks.auxiliary_models import load_auxiliary_model

#: Values of ``--draft``.
DRAFTS = ("source", "none")


def draft_options(cfg: TranslationConfig) -> list[str]:
    """The options of a task that request drafts, as on the command line."""
    names = ("draft_path", "draft", "draft_file")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(cfg, name) is not None]


def build_drafter(task: FairseqTask, models: Sequence[FairseqEncoderDecoderModel]) -> Drafter | None:
    """The drafter for a task's models; None without options.

    Raises:
        ValueError: for several options, for a file or a checkpoint that cannot be read, and for a checkpoint with other
            dictionaries.
    """
    cfg, options = task.cfg, draft_options(task.cfg)
    if len(options) > 1:
        raise ValueError(f"{' and '.join(options)} cannot be given together: a sentence has one draft")
    if cfg.draft is not None:
        return SourceDrafter(task.source_dictionary.symbols, task.target_dictionary.symbols)
    if cfg.draft_file is not None:
        return TranslationMemoryDrafter(cfg.draft_file, task.target_dictionary.symbols)
    return None if cfg.draft_path is None else _model_drafter(cfg, models[0])


def _model_drafter(cfg: TranslationConfig, verifier: FairseqEncoderDecoderModel) -> ModelDrafter:
    """A drafter with the model of ``--draft-path`` and its fastest search."""
    task, model = load_auxiliary_model("--draft-path", cfg.draft_path, cfg, verifier)
    refines = isinstance(model, FairseqNATModel)
    fastest = GenerationConfig(iter_decode_max_iter=0) if refines else GenerationConfig(beam=1)
    return ModelDrafter(task, model, task.build_generator([model], fastest))
