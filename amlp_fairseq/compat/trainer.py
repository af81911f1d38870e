"""Changes of ``fairseq.trainer``: a function that gets a ``stock`` takes the place of the method of ``Trainer``
with its name (:func:`init`: of ``__init__``), which it is given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from fairseq.logging import progress_bar
from fairseq.models import BaseFairseqModel
from fairseq.nan_detector import NanDetector
from fairseq.tasks.translation import TranslationTask

from amlp_fairseq.common import host_memory
from amlp_fairseq.common.training_folder import mark_diverged
from amlp_fairseq.compat import optim
from amlp_fairseq.compat.changes import Stock
from amlp_fairseq.compat.eval_bleu import DecodedValidationTask
from amlp_fairseq.compat.internals import TASK_REGISTRY, TranslationLevenshteinTask
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.compat.tasks import GuardedTranslationTask, is_guarded
from amlp_fairseq.text.dictionary import fingerprint

if TYPE_CHECKING:
    from fairseq.trainer import Trainer

logger = logging.getLogger(__name__)

#: In the state that is not the model's: the best validation and how many were no better since, for ``--patience``.
PATIENCE = "early_stopping"


def init(stock: Stock, self: Trainer, cfg: Any, *args: object, **kwargs: object) -> None:
    """Begin a training that a CPU can make, too, and check its options."""
    common = getattr(cfg, "common", cfg)
    self._freed_pieces = None
    if common.fp16 and not torch.cuda.is_available():
        common.fp16_no_flatten_grads = True  # stock joins the parameters on a GPU
    if common.cpu or not torch.cuda.is_available():
        self._freed_pieces = _keep_memory()
    stock(self, cfg, *args, **kwargs)
    cfg = self.cfg
    task = None if cfg.dataset.disable_validation else cfg.task._name
    eval_bleu = getattr(cfg.task, "eval_bleu", None)
    _check_options(cfg.checkpoint.best_checkpoint_metric, task, eval_bleu, cfg.common.tensorboard_logdir)


def _keep_memory() -> host_memory.FreedPieces:
    """Keep the memory that a training on a CPU frees, and few of the products that are compiled for a shape."""
    host_memory.keep_few_products()
    huge = host_memory.has_huge_pages()
    host_memory.keep_freed_memory(host_memory.KEPT_BY_TRAINING if huge else host_memory.KEPT)
    return host_memory.FreedPieces()


def _check_options(metric: str, task: str | None, eval_bleu: bool | None, tensorboard: str | None) -> None:
    """Refuse what would end a training after its first epoch, or what fairseq leaves out with a warning.

    Args:
        metric: ``--best-checkpoint-metric``.
        task: the name of the task; None without validation.
        eval_bleu: ``--eval-bleu``; None for a task that does not have the option.
        tensorboard: ``--tensorboard-logdir``.

    Raises:
        ValueError: naming the option and what it needs.
    """
    if metric == "bleu" and task is not None:
        kind = TASK_REGISTRY[task]
        fairseqs = issubclass(kind, TranslationLevenshteinTask) and not issubclass(kind, DecodedValidationTask)
        if eval_bleu is None or fairseqs:  # it has the option, and ignores it
            raise ValueError(
                f"--best-checkpoint-metric bleu: --task {task} has no BLEU in validation; --eval-bleu is "
                "for the tasks of the plugin and fairseq's translation"
            )
        if not eval_bleu:
            raise ValueError("--best-checkpoint-metric bleu needs --eval-bleu, which decodes the validation set")
    if tensorboard and progress_bar.SummaryWriter is None:
        raise ValueError(
            f"--tensorboard-logdir {tensorboard} needs tensorboardX, which is not installed: "
            'pip install "amlp-fairseq[tensorboard]"'
        )


def train_step(stock: Stock, self: Trainer, samples: Any, raise_oom: bool = False) -> Any:
    """Raise :class:`Diverged` where gradients are no longer finite, and leave a mark in the training's folder; stock
    ends with a traceback, mostly of another error. On a CPU give freed memory back once the process has grown."""
    try:
        result = stock(self, samples, raise_oom)
    except FloatingPointError as error:
        folder, updates = Path(self.cfg.checkpoint.save_dir), self.get_num_updates()
        reason = " ".join(str(error).split())
        if not self.cfg.checkpoint.no_save:
            mark_diverged(folder, updates, reason)
        raise Diverged(f"--save-dir {folder}: the training has diverged after {updates} updates: {reason}") from error
    if self._freed_pieces is not None:
        self._freed_pieces.after_update()
    return result


class Diverged(ValueError):
    """A training has diverged."""


class Detector(NanDetector):
    """Stock's, for the forward pass alone, without a dump of all gradients: torch's hooks for the backward pass cannot
    take the dictionary that fairseq's encoders return."""

    def __init__(self, model: BaseFairseqModel) -> None:
        super().__init__(model, backward=False)

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_hooks(self, module: Any) -> None:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))


def state_dict(stock: Stock, self: Trainer) -> dict[str, Any]:
    """Keep in the checkpoints of guarded trainings (:func:`is_guarded`) what they need to go on as if they had not been
    stopped: a checkpoint of stock has the parameters of the model alone, rounded to 16 bits."""
    state: dict[str, Any] = stock(self)
    if is_guarded(self):
        if self.cfg.checkpoint.patience > 0:
            state["extra_state"][PATIENCE] = {**patience_state()}
        if "last_optimizer_state" in state and not self.is_fsdp:
            state["last_optimizer_state"] = state["last_optimizer_state"] | optim.float32_state(self.optimizer)
    return state


def load_checkpoint(
    stock: Stock, self: Trainer, filename: str, *args: object, reset_meters: bool = False, **kwargs: object
) -> dict[str, Any] | None:
    """Load a checkpoint with the same dictionaries, and how long ``--patience`` has waited.

    A model of the plugin takes from ``--finetune-from-model`` what fits; stock wants all parameters to be the same."""
    model, begins = self.get_model(), filename == self.cfg.checkpoint.finetune_from_model
    guarded = isinstance(self.task, GuardedTranslationTask)
    if (guarded or (begins and isinstance(self.task, TranslationTask))) and PathManager.exists(filename):
        state = checkpoint_utils.load_checkpoint_to_cpu(filename)
        if guarded:
            self.task.check_dictionaries(state.get("task_state", {}))
        if begins:
            check_words(self.task, state, filename)
    if is_ours(type(model)) and begins:
        initialize(model, checkpoint_utils.load_checkpoint_to_cpu(filename)["model"], filename)
        return None
    extra_state: dict[str, Any] | None = stock(self, filename, *args, reset_meters=reset_meters, **kwargs)
    if extra_state and not reset_meters:
        patience_state().update(extra_state.get(PATIENCE, {}))
    return extra_state


def check_words(task: TranslationTask, state: Mapping[str, Any], filename: str) -> None:
    """Raise ValueError if a training would take the embeddings of ``--finetune-from-model`` for those of other words:
    if a dictionary of that checkpoint has as many entries, and other ones. fairseq's checkpoints do not say what their
    dictionaries are: they are looked for in the data folder and beside the checkpoint; the log says if there are none.
    """
    own = {"source": task.src_dict, "target": task.tgt_dict}
    trained = (state.get("task_state") or {}).get("dictionaries") or _dictionaries_of(state, filename)
    if not trained:
        logger.warning(
            f"--finetune-from-model {filename}: nothing says of which words its embeddings are; with other "
            "dictionaries than those of this training the model begins as garbage"
        )
    for side, dictionary in own.items():
        found, needed = trained.get(side), fingerprint(dictionary.symbols)
        if found is not None and found != needed and found.split()[0] == needed.split()[0]:
            raise ValueError(
                f"--finetune-from-model {filename}: its {side} dictionary ({found}) has other words than that of the "
                f"data ({needed}), and as many: binarize the data with its dict.*.txt (fairseq-preprocess --srcdict, "
                "--tgtdict)"
            )


def _dictionaries_of(state: Mapping[str, Any], filename: str) -> dict[str, str]:
    """Fingerprints of the dictionaries in a checkpoint's data folder, or of those beside it; empty without any."""
    section = state["cfg"]["task"]
    languages = {side: getattr(section, f"{side}_lang", None) for side in ("source", "target")}
    for folder in (Path(str(getattr(section, "data", None)).split(":")[0]), Path(filename).parent):
        paths = {side: folder / f"dict.{language}.txt" for side, language in languages.items()}
        if all(path.is_file() for path in paths.values()):
            return {side: fingerprint(Dictionary.load(str(path)).symbols) for side, path in paths.items()}
    return {}


def patience_state() -> dict[str, Any]:
    """Where fairseq-train keeps the ``best`` validation and ``num_runs``, the number of those after it."""
    from fairseq_cli.train import should_stop_early

    return vars(should_stop_early)


@torch.no_grad()
def initialize(model: BaseFairseqModel, weights: dict[str, torch.Tensor], filename: str) -> None:
    """Copy the tensors that have the name and shape of one of the model's parameters, and log the parts that have none.

    Args:
        model: changed in place.
        weights: of another model, by name; those that a model of the plugin renames when it loads them have their new
            names here, too.
        filename: theirs.

    Raises:
        ValueError: if none has.
    """
    weights = {**weights, **dict(model.named_buffers())}  # which no other model's may contradict
    model.upgrade_state_dict(weights)
    new: set[str] = set()
    taken = 0
    for name, parameter in model.named_parameters():
        given = weights.get(name)
        if given is not None and given.shape == parameter.shape:
            parameter.copy_(given)
            taken += 1
        else:
            new.add(".".join(name.split(".")[:-1]))
    if not taken:
        raise ValueError(f"--finetune-from-model {filename}: no parameter has a name and shape of this model's")
    logger.info(f"{taken} parameters are those of {filename}; new: {', '.join(sorted(new)) or 'none'}")
