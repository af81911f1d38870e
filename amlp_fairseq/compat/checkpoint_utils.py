"""Changes of ``fairseq.checkpoint_utils``: a function that gets a ``stock`` takes the place of fairseq's with
its name, which it is given.

Checkpoints load with torch's ``weights_only`` left on: their pickles hold data and nothing that could run code. torch
refuses fairseq's own checkpoints because of a few harmless types; :func:`allow_types` lists exactly those. Data that
fairseq would evaluate when it builds a model is the matter of ``literal_options``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import pickle
import re
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import omegaconf
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from numpy._core import multiarray
from omegaconf import DictConfig, open_dict

from amlp_fairseq.common.arguments import WITHOUT_COLON
from amlp_fairseq.common.files import hold
from amlp_fairseq.common.renamed_options import present_name, with_present_names
from amlp_fairseq.common.training_folder import BUSY, DIVERGED, LAST, newest_whole
from amlp_fairseq.compat.changes import Stock
from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from amlp_fairseq.compat.tasks import is_guarded
from amlp_fairseq.compat.trainer import patience_state

logger = logging.getLogger(__name__)

_reconstruct: Any = multiarray._reconstruct  # type: ignore[attr-defined]
_scalar: Any = multiarray.scalar  # type: ignore[attr-defined]


class _Meter:
    """Meters of speed and losses in checkpoints of fairseq up to 0.8; nobody reads them any more."""


#: ``cfg`` of models with legacy options; arrays and numbers that validation leaves in the metrics, under the names of
#: NumPy 1 and 2; the meters of fairseq up to 0.8.
CHECKPOINT_TYPES: list[Any] = [
    argparse.Namespace,
    *(
        (function, f"{module}.multiarray.{name}")
        for name, function in (("_reconstruct", _reconstruct), ("scalar", _scalar))
        for module in ("numpy.core", "numpy._core")
    ),
    np.ndarray,
    np.dtype,
    *(getattr(np.dtypes, f"{name}DType") for name in ("Bool", "Int32", "Int64", "Float32", "Float64")),
    *((_Meter, f"fairseq.meters.{name}") for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")),
]
#: Types that rank 0 sends to the other workers when training is resumed: there ``cfg`` is a DictConfig.
BROADCAST_TYPES: list[Any] = [
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    omegaconf.nodes.AnyNode,
    typing.Any,
    collections.defaultdict,
    dict,
    list,
    int,
    distributed_utils._TensorPlaceholder,
]
#: Ends of the names of options that say how large a model is, and what is possible whatever its tensors: positions that
#: are not learned have none.
SIZES = {"_dim": 0, "_layers": 0, "_heads": 0, "_positions": 1 << 20}


def load_checkpoint_to_cpu(
    stock: Stock,
    path: str,
    arg_overrides: Mapping[str, Any] | None = None,
    load_on_all_ranks: bool = False,
    *,
    read_folder: Callable[[str, Any], dict[str, Any] | str],
) -> dict[str, Any]:
    """Load a checkpoint, or the folder of a model, and check the options that it brings along before fairseq drops
    those that the model does not have (``--model-overrides``) and builds it. Options get their present names.
    Args:
        read_folder: gets the path of a folder and the overrides; returns its state, or the path of its checkpoint.

    Raises:
        pickle.UnpicklingError: naming the file and what it holds beside data.
        ValueError: for a damaged file, options that the plugin's model would ignore, and sizes that its tensors cannot
            have and that would take all memory.
    """
    overrides = with_present_names(arg_overrides or {})
    state: Any = read_folder(path, overrides) if os.path.isdir(path) else path
    if isinstance(state, str):
        with refusals_name(state):
            state = stock(state, overrides, load_on_all_ranks)
    cfg = state.get("cfg") or {}
    model, task = cfg.get("model"), cfg.get("task")
    config = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(getattr(model, "_name", None)), object)
    _rename(task, overrides)
    _add_overrides(model, config, overrides)
    _add_overrides(task, TASK_DATACLASS_REGISTRY.get(getattr(task, "_name", None)), overrides)
    options = state.get("args") or model  # old checkpoints have all of them in ``args`` alone
    _refuse_impossible_sizes(path, state.get("model"), options)
    if hasattr(config, "refuse_unsupported"):
        config.refuse_unsupported(options)
    return state


def upgrade_state_dict(stock: Stock, state: dict[str, Any]) -> Any:
    """Upgrade a checkpoint of an older version, also one that was stripped of all that is not for decoding; stock wants
    the history of the optimizer.

    Raises:
        ValueError: for an architecture or a task that is not registered, of a checkpoint with ``args`` alone; and for
            one without options.
    """
    if not state.get("optimizer_history") and "best_loss" not in state:
        state["optimizer_history"] = [{"criterion_name": None, "optimizer_name": None, "lr_scheduler_state": {}}]
    if "extra_state" not in state and "epoch" not in state:
        state["extra_state"] = {}
    state.setdefault("last_optimizer_state", None)
    args = state.get("args")
    if args is None and state.get("cfg") is None:
        raise ValueError("the checkpoint has neither 'args' nor 'cfg', which say what its model is")
    if args is not None:
        refuse_unregistered(getattr(args, "arch", None), getattr(args, "task", None))
    return stock(state)


def refuse_unregistered(architecture: str | None, task: str | None) -> None:
    """Raise ValueError for the architecture or the task of a checkpoint, if nobody has registered it."""
    for kind, name, known in (("architecture", architecture, ARCH_MODEL_REGISTRY), ("task", task, TASK_REGISTRY)):
        if name is not None and name not in known:
            raise ValueError(
                f"the {kind} {name!r} of the checkpoint is not one of fairseq's: --user-dir DIR runs the code of the "
                "folder that registers it"
            )


def _rename(section: Any, overrides: Mapping[str, Any]) -> None:
    """Give the options of a section their present names, which fairseq's overriding has not seen."""
    for name in list(section) if isinstance(section, DictConfig) else ():
        if (present := present_name(name)) != name:
            with open_dict(section):
                section[present] = overrides.get(present, section.pop(name))


def _add_overrides(section: Any, config: Any, overrides: Mapping[str, Any]) -> None:
    """Set the options that the model or the task has and the checkpoint does not, being older; fairseq passes over
    them."""
    if not isinstance(section, DictConfig):
        return
    for name, value in overrides.items():
        if name in getattr(config, "__dataclass_fields__", {}) and name not in section:
            with open_dict(section):
                section[name] = value


def _refuse_impossible_sizes(path: str, tensors: Any, options: Any) -> None:
    shapes = [value.shape for value in (tensors or {}).values() if isinstance(value, torch.Tensor)]
    largest = max((size for shape in shapes for size in shape), default=0)
    named = vars(options) if isinstance(options, argparse.Namespace) else options or {}
    for name, value in named.items():
        end = "".join(name.rpartition("_")[1:])
        if end in SIZES and largest and isinstance(value, int) and value > max(1000 * largest, SIZES[end]):
            raise ValueError(
                f"{path} is refused: it says {name} = {value}, and none of its tensors has more than {largest} entries "
                "in a dimension"
            )


def load_checkpoint(stock: Stock, cfg: Any, trainer: Any, **kwargs: object) -> Any:
    """Begin or resume a training; a guarded one (:func:`is_guarded`) alone in its folder, from a checkpoint that exists
    and is whole, and not beyond its end."""
    loaded = _load_guarded(stock, cfg, trainer, **kwargs) if is_guarded(trainer) else stock(cfg, trainer, **kwargs)
    if cfg.save_dir is not None:  # the training is tried again
        Path(cfg.save_dir, DIVERGED).unlink(missing_ok=True)
    return loaded


def _load_guarded(stock: Stock, cfg: Any, trainer: Any, **kwargs: object) -> Any:
    if ":" in cfg.save_dir:
        raise ValueError(f"--save-dir {cfg.save_dir}: {WITHOUT_COLON}")
    for option, path in (("--restore-file", cfg.restore_file), ("--continue-once", cfg.continue_once)):
        if path not in (None, LAST) and not PathManager.exists(path):  # fairseq would begin anew
            raise ValueError(f"{option} {path} does not exist")
    data = trainer.cfg.dataset
    if data.update_ordered_indices_seed and not data.update_epoch_batch_itr:
        raise ValueError(
            "--update-ordered-indices-seed needs --update-epoch-batch-itr True: otherwise batches are composed once"
        )
    if trainer.is_data_parallel_master and not cfg.no_save:
        lock = Path(cfg.save_dir) / ".training.lock"
        hold(lock, f"--save-dir {cfg.save_dir}: {BUSY}")
    try:
        loaded = stock(cfg, trainer, **kwargs)
    except ValueError as error:
        if cfg.restore_file != LAST or "is damaged or no checkpoint" not in str(error):
            raise
        whole = newest_whole(Path(cfg.save_dir))
        way = f"--restore-file {whole} goes on from the newest whole one" if whole else "there is no whole one"
        raise ValueError(f"{error}; {way}") from error
    optimization = trainer.cfg.optimization
    if 0 < optimization.max_update <= trainer.get_num_updates():  # fairseq would make one more
        logger.info("the training has had its %d updates", trainer.get_num_updates())
        optimization.max_epoch = -1
    elif 0 < cfg.patience <= patience_state().get("num_runs", 0):
        logger.info("the training has stopped early, after %d updates", trainer.get_num_updates())
        optimization.max_epoch = -1
    return loaded


def save_checkpoint(stock: Stock, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
    """Let guarded trainings without epochs' checkpoints save that of an interval wherever it ends. In stock an epoch of
    as many updates as ``--save-interval-updates``, or a fraction of it, leaves none (fairseq's issue 2230)."""
    if getattr(cfg, "no_epoch_checkpoints", False) and is_guarded(trainer):
        epoch_itr = _WithinEpoch(epoch_itr)
    return stock(cfg, trainer, epoch_itr, val_loss)


class _WithinEpoch:
    """An iterator over epochs that does not say that one has ended; its state does."""

    def __init__(self, iterator: Iterable[Any]) -> None:
        self.iterator = iterator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

    def end_of_epoch(self) -> bool:
        return False


def allow_types() -> None:
    """Let torch load fairseq's checkpoints."""
    torch.serialization.add_safe_globals(CHECKPOINT_TYPES + BROADCAST_TYPES)


@contextlib.contextmanager
def refusals_name(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make torch's refusal to load ``path`` say which file and which type (a ``pickle.UnpicklingError``), or which file
    is damaged (a ``ValueError``). Other errors stay as they are."""
    try:
        yield
    except Exception as error:
        if not _is_caused_by_content(error):
            raise
        if not isinstance(error, pickle.UnpicklingError):
            raise ValueError(f"{path} is damaged or no checkpoint: {type(error).__name__}: {error}") from error
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it holds {found.group(1)}, which is" if found else "its content is"
        raise pickle.UnpicklingError(
            f"{path} is refused: {what} not data that fairseq's checkpoints are made of, and could run code when loaded"
        ) from error


def _is_caused_by_content(error: Exception) -> bool:
    """True if ``torch.load`` could not read the file's content: it raises many types, from EOFError to struct.error,
    which are recognised by the module that raises them."""
    frames = traceback.walk_tb(error.__traceback__)
    by_torch_load = any(frame.f_globals.get("__name__") == "torch.serialization" for frame, _ in frames)
    could_not_open = isinstance(error, OSError) and error.filename is not None
    no_memory = isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
    return by_torch_load and not could_not_open and not no_memory
