"""Changes of ``fairseq.tasks``: the plugin's own tasks, and any that builds its models, are without traps."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary, FairseqDataset
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask

from amlp_fairseq.common.training_folder import RECIPE
from amlp_fairseq.compat.changes import Stock
from amlp_fairseq.compat.commands import keep_lines_whole
from amlp_fairseq.compat.eval_bleu import DecodedValidationTask
from amlp_fairseq.text.dictionary import fingerprint


def init_from_pretrained_bart(stock: Stock, self: Any, args: Any, *dictionaries: Dictionary) -> None:
    """Keep the options where this task of fairseq's reads them."""
    self.args = args
    stock(self, args, *dictionaries)


def build_generator(stock: Stock, self: Any, models: Any, args: Any, *others: Any, **more: Any) -> Any:
    """Make alignments for ``--replace-unk``, too."""
    if getattr(args, "replace_unk", None) is not None and not getattr(args, "print_alignment", None):
        args = copy.copy(args)
        args.print_alignment = "hard"
    return stock(self, models, args, *others, **more)


class GuardedTask(FairseqTask):
    """A task of fairseq with two differences.

    - No sentence is lost: fairseq drops the rest of the last batch when ``--required-batch-size-multiple`` (8 by
      default) does not divide its size.
    - A training that is resumed sees the batches that it would have seen: fairseq composes others.
    """

    def get_batch_iterator(
        self, dataset: FairseqDataset, *args: object, seed: int = 1, epoch: int = 1, **kwargs: object
    ) -> Any:
        kwargs["required_batch_size_multiple"] = 1
        # fairseq composes batches with the seed ``seed + epoch``, and their order in an epoch with ``iterator.seed``.
        # Each epoch of sharded data has batches of its own, resumed or not, and each with --update-epoch-batch-itr.
        own = self.has_sharded_data("train") or kwargs.get("update_epoch_batch_itr", False)
        composed_with = seed if own else seed + 1 - epoch
        try:
            iterator = super().get_batch_iterator(dataset, *args, seed=composed_with, epoch=epoch, **kwargs)
        except AssertionError as error:
            if "max_tokens" not in str(error):
                raise
            text = f"--max-tokens (--max-tokens-valid) is less than the longest sentence has: {error}"
            raise ValueError(text) from error
        iterator.seed = seed
        return iterator


class GuardedTranslationTask(GuardedTask, DecodedValidationTask):
    """fairseq's translation task, with four differences, and those of its base classes.

    - Lines that were translated are forgotten: fairseq-interactive keeps the data set of every buffer.
    - A sentence that is too long is an error that names it, its lengths and the options that help.
    - The checkpoint keeps fingerprints of the dictionaries that it was trained with; others are refused, also when a
      training starts from it (fairseq's trainer does not look at the state of the task).
    - Hypotheses have ``steps`` for ``--print-step``, whatever generator makes them.
    """

    def get_batch_iterator(self, dataset: FairseqDataset, *args: object, **kwargs: Any) -> Any:
        if not any(dataset is each for each in self.datasets.values()):
            kwargs["disable_iterator_cache"] = True
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def filter_indices_by_size(
        self, indices: Any, dataset: FairseqDataset, max_positions: Any = None, ignore_invalid_inputs: bool = False
    ) -> Any:
        _, ignored = dataset.filter_indices_by_size(indices, max_positions)
        if len(ignored) > 0 and not ignore_invalid_inputs:
            lengths = tuple(map(int, np.atleast_1d(dataset.size(ignored[0]))))
            raise ValueError(
                f"{len(ignored)} sentence(s) are too long, the first is sentence {ignored[0]} with (source, target) "
                f"lengths {lengths}; --max-source-positions and --max-target-positions allow "
                f"{max_positions}. Raise them, or cut long sources with --truncate-source, or leave such sentences out "
                "with --skip-invalid-size-inputs-valid-test"
            )
        return super().filter_indices_by_size(indices, dataset, max_positions, ignore_invalid_inputs)

    def state_dict(self) -> dict[str, Any]:
        """The task's state in a checkpoint, with fingerprints of its dictionaries."""
        return {**super().state_dict(), "dictionaries": self._fingerprints()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the task's state from a checkpoint; one that fairseq's own models left has no fingerprints.

        Raises:
            ValueError: if the checkpoint belongs to other dictionaries.
        """
        self.check_dictionaries(state_dict)
        super().load_state_dict(state_dict)

    def inference_step(self, *args: object, **kwargs: Any) -> Any:
        return with_steps(super().inference_step(*args, **kwargs))

    def check_dictionaries(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError if a task's state is that of other dictionaries."""
        saved = state_dict.get("dictionaries")
        for side, own in self._fingerprints().items():
            if saved is not None and saved[side] != own:
                raise ValueError(
                    f"the {side} dictionary of {self.cfg.data} ({own}) is not the one that the model was "
                    f"trained with ({saved[side]}): binarize the data with the model's dict.*.txt "
                    "(fairseq-preprocess --srcdict, --tgtdict)"
                )

    def _fingerprints(self) -> dict[str, str]:
        return {"source": fingerprint(self.src_dict.symbols), "target": fingerprint(self.tgt_dict.symbols)}


def with_steps(sentences: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Hypotheses with ``steps``. A beam search has made one for each word of a sentence's longest hypothesis."""
    for hypotheses in sentences:
        steps = max((len(hypothesis["tokens"]) for hypothesis in hypotheses), default=0)
        for hypothesis in hypotheses:
            hypothesis.setdefault("steps", steps)
    return sentences


def is_guarded(trainer: Any) -> bool:
    """True for the training of a guarded task, or of a recipe."""
    return isinstance(trainer.task, GuardedTask) or Path(trainer.cfg.checkpoint.save_dir, RECIPE).is_file()


def guard(task: FairseqTask) -> None:
    """Guard ``task``, this object alone. Called when it builds a model of the plugin.

    Raises:
        ValueError: if it has already loaded a checkpoint that belongs to other dictionaries, and for options of
            ``--eval-bleu`` that its search would not obey.
    """
    keep_lines_whole()
    if isinstance(task, GuardedTask) or not isinstance(task, FairseqTask):
        return
    translates = isinstance(task, TranslationTask)
    task.__class__ = _guarded(translates, type(task))  # type: ignore[arg-type]
    if translates:
        task.check_dictionaries(task.state.state_dict)
        task.check_eval_bleu()


@functools.cache
def _guarded(translates: bool, kind: Any) -> Any:
    guarded = GuardedTranslationTask if translates else GuardedTask
    return type(f"Guarded{kind.__name__}", (guarded, kind), {})
