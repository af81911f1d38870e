"""The command that comes after a checkpoint, with which commands end (docs/output-format.md, "The next command")."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from omegaconf import DictConfig

from amlp_fairseq.common.arguments import say_next
from amlp_fairseq.common.training_folder import RECIPE
from amlp_fairseq.model_folder.format import PLAIN_TASKS
from amlp_fairseq.training.config import PAPER, flags, load, names, read
from amlp_fairseq.training.data_folder import stored_text, usual_scale
from amlp_fairseq.training.engine import section_of, task_of

#: Data that fit a model's scale.
SIZES = ("encoder-embed-dim", "encoder-ffn-embed-dim", "encoder-layers", "decoder-layers")


def unused(path: Path) -> Path:
    """A name for what a command will make: this one, or with a number where there is something of that name."""
    return next(name for i in count(1) if not (name := path.with_name(path.name + f"-{i}" * (i > 1))).exists())


def say_package(checkpoints: Path, out: Path, trained_on: Path, data: Path) -> None:
    """Name the command that packages a checkpoint or the folder of a training.

    Args:
        checkpoints: the one or the other.
        out: the folder to make, if there is none of that name.
        trained_on: the data folder that the checkpoint names.
        data: where it is now.
    """
    moved = [] if trained_on.resolve() == data.resolve() else ["--data", data]
    say_next("package", checkpoints, "--out", unused(out), *moved)


def say_after_checkpoint(path: Path, cfg: DictConfig) -> None:
    """Name the command that makes use of a checkpoint which ``amlp-fairseq evaluate`` does not: none for a task that
    neither translates nor models language, or where its data are not there.

    Args:
        path: the checkpoint.
        cfg: its own.
    """
    options = section_of(cfg, "task")
    task, data = options["_name"], Path(str(options.get("data")).split(":")[0])
    if not data.is_dir():
        return
    if task == "language_modeling":
        say_next("eval-lm", data, "--path", path)
    elif task in PLAIN_TASKS and stored_text(data) is not None:
        say_package(path, path.with_suffix(""), data, data)
    elif task in PLAIN_TASKS:
        say_next("generate", data, "--path", path, *flags(task_of(cfg), str(path)))


def scale_of(teacher: Path, cfg: DictConfig, data: Path) -> tuple[str, bool]:
    """The scale of a student, and whether it is the teacher's, with whose parameters it can begin then: the one of the
    teacher's training, or of the same sizes; else that of the corpus.

    Args:
        teacher: a checkpoint or the folder of a model.
        cfg: its own.
        data: what it has translated.
    """
    if (teacher.parent / RECIPE).is_file() and (own := read(teacher.parent / RECIPE).scale) in names("scale"):
        return own, True
    corpus = (stored_text(data) or {}).get("corpus", "")
    model = section_of(cfg, "model")
    for scale in names("scale"):
        sizes = load("transformer", "", scale, ["en", "de"]).train
        if all(sizes.get(name) == model.get(name.replace("-", "_"), "") for name in SIZES):
            return scale, True
    return usual_scale(corpus) if corpus else PAPER, False
