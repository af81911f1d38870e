"""Trainings whose gradients are no longer finite, which fairseq ends with a traceback, mostly of another error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.nan_detector import NanDetector
from torch.multiprocessing import ProcessRaisedException

#: In the folder of a training that has diverged: after how many updates, and what was found.
MARK = "diverged.json"
#: What fairseq writes there when it finds that.
CRASH = "crash.pt"


class Diverged(ValueError):
    """A training has diverged."""


def diverged(folder: Path) -> int | None:
    """After how many updates the training in a folder has diverged, None if it has not."""
    path = folder / MARK
    return int(json.loads(path.read_text(encoding="utf-8"))["updates"]) if path.is_file() else None


def mark(step: Any, self: Any, samples: Any, raise_oom: bool = False) -> Any:
    """Leave a mark in the folder of a training that diverges, and raise :class:`Diverged`."""
    try:
        return step(self, samples, raise_oom)
    except FloatingPointError as error:
        folder, updates = Path(self.cfg.checkpoint.save_dir), self.get_num_updates()
        text = " ".join(str(error).split())
        if not self.cfg.checkpoint.no_save:
            part = folder / f"{MARK}.{self.cfg.distributed_training.distributed_rank}"
            part.write_text(json.dumps({"updates": updates, "error": text}), encoding="utf-8")
            part.replace(folder / MARK)
        raise Diverged(f"--save-dir {folder}: the training has diverged after {updates} updates: {text}") from error


def remove_mark(load: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
    """Remove the mark where a training is tried again."""
    loaded = load(cfg, *args, **kwargs)
    if cfg.save_dir is not None:
        Path(cfg.save_dir, MARK).unlink(missing_ok=True)  # the training is tried again
    return loaded


def name_of_process(call_main: Any, cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
    """Raise :class:`Diverged` also where fairseq has started a process for each GPU."""
    try:
        return call_main(cfg, main, **kwargs)
    except ProcessRaisedException as error:
        if (text := told_by(error)) is None:
            raise
        raise Diverged(text) from None


def told_by(error: ProcessRaisedException) -> str | None:
    """What a process has said that has ended with :class:`Diverged`; None for another error."""
    line, name = str(error).strip().rpartition("\n")[2], f"{Diverged.__module__}.{Diverged.__qualname__}: "
    return line.removeprefix(name) if line.startswith(name) else None


class Detector(NanDetector):
    """fairseq's, for the forward pass alone, without a dump of all gradients: torch's hooks for the backward pass
    cannot take the dictionary that fairseq's encoders return."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, backward=False)

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_hooks(self, module: Any) -> None:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))
