"""Checkpoints load with ``weights_only`` left on: their pickles hold data and nothing that could run code.

Data that fairseq would evaluate when it builds a model is the matter of ``literal_options``.

torch ≥ 2.6 refuses fairseq's own checkpoints because of a few harmless types. :func:`install` allow-lists exactly
those, and makes the refusal of anything else name the file and the type.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pickle
import re
import traceback
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import omegaconf
import torch
from fairseq.distributed import utils as distributed_utils
from numpy._core import multiarray

_reconstruct: Any = multiarray._reconstruct  # type: ignore[attr-defined]
#: ``cfg`` of models with legacy options; arrays that ``--eval-bleu`` leaves in the validation metrics, which of several
#: processes are in float64, under the names of NumPy 1 and 2.
CHECKPOINT_TYPES: list[Any] = [
    argparse.Namespace,
    (_reconstruct, "numpy.core.multiarray._reconstruct"),
    (_reconstruct, "numpy._core.multiarray._reconstruct"),
    np.ndarray,
    np.dtype,
    np.dtypes.Int64DType,
    np.dtypes.Float64DType,
]
#: What rank 0 sends to the other workers when training is resumed: there ``cfg`` is a DictConfig.
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


def allow_types() -> None:
    """Let torch load fairseq's checkpoints."""
    torch.serialization.add_safe_globals(CHECKPOINT_TYPES + BROADCAST_TYPES)


def name_what_is_refused(load: Any, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Name the file that is refused."""
    with refusals_name(path):
        return load(path, *args, **kwargs)


@contextlib.contextmanager
def refusals_name(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make torch's refusal to load ``path`` say which file and which type (a ``pickle.UnpicklingError``), or which file
    is damaged (a ``ValueError``). Other errors stay as they are."""
    try:
        yield
    except Exception as error:
        if not _is_of_the_content(error):
            raise
        if not isinstance(error, pickle.UnpicklingError):
            raise ValueError(f"{path} is damaged or no checkpoint: {type(error).__name__}: {error}") from error
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it holds {found.group(1)}, which is" if found else "its content is"
        raise pickle.UnpicklingError(
            f"{path} is refused: {what} not data that fairseq's checkpoints are made of, and could run code when loaded"
        ) from error


def _is_of_the_content(error: Exception) -> bool:
    """Whether ``torch.load`` could not read what is in the file. It then raises errors of every type, from EOFError to
    struct.error, so that what tells them from others is where they come from."""
    frames = traceback.walk_tb(error.__traceback__)
    by_torch_load = any(frame.f_globals.get("__name__") == "torch.serialization" for frame, _ in frames)
    could_not_open = isinstance(error, OSError) and error.filename is not None
    no_memory = isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
    return by_torch_load and not could_not_open and not no_memory
