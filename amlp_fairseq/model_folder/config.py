"""``config.json`` of a model folder, and the checksums of its files."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from amlp_fairseq.common.files import sha256
from amlp_fairseq.common.renamed_options import with_present_names

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT = 1
#: Keys of config.json, beside ``format``.
KEYS = (
    *("languages", "text", "decoding", "longest_source", "weights", "shared_weights", "updates", "task", "task_state"),
    *("model", "model_options", "criterion"),
)
#: Types of stored weights.
WEIGHT_TYPES = ("float32", "bfloat16", "int8")
#: Values of decoding options that turn off what a folder's own options name.
DISABLED = {"rescore_path": "", "draft_path": "", "draft_file": "", "draft": "none", "shortlist": "none"}
#: Error text for several models.
SEVERAL = "models that decode as one are given as --model A:B"


def is_model_folder(path: str | Path) -> bool:
    return (Path(path) / CONFIG).is_file()


def members(model: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The folders of models that decode as one: several, names with ``:`` between them, or those in the folder of an
    ensemble; of another model its own folder.

    Raises:
        TypeError: for what names no folder.
        ValueError: for a folder of an ensemble that is damaged, and where a name is missing.
    """
    given = model
    if isinstance(model, str | Path):
        model = [model] if Path(model).exists() else str(model).split(":")
    if not isinstance(model, Sequence) or not all(isinstance(each, str | Path) for each in model):
        raise TypeError(f"a model's folder is needed, or several in a list, not {given!r}")
    if not model or not all(map(str, model)):
        raise ValueError(f"{given!r} does not name all models: A, or A:B")
    return tuple(member for folder in model for member in _members(Path(folder)))


def _members(folder: Path) -> list[Path]:
    path = folder / CONFIG
    if not path.is_file():
        return [folder]
    try:
        content = _content(path)
        return [folder / str(name) for name in content["members"]] if "members" in content else [folder]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json``: ``languages`` (source, target), ``text`` (see ``text/pipeline.py``), ``decoding`` (options of
    fairseq-generate and of the task by name), ``longest_source`` (maximum length of a source in tokens; None: the
    model's positions), ``task``, ``model``, ``criterion``, ``task_state``, ``updates``; folders of older versions may
    lack ``checksums`` (SHA-256 of the other files by name) and ``description`` (``models/description.py``), and may
    have former names of options; ``split_sentences`` is only there if False: a line is a document; ``language_tokens``
    only for multilingual models (``language_tokens.py``).

    Raises:
        ValueError: if the folder is not a model, is damaged, or was written by a later version; names it.
    """
    path = folder / CONFIG
    if ":" in str(folder) and not folder.exists():
        raise ValueError(f"{folder}: there is no such folder; one model is needed here")
    if ":" in str(folder):
        raise ValueError(f"{folder}: rename it without ':', at which fairseq splits paths")
    if not path.is_file():
        raise ValueError(f"{folder} is not the folder of a model: it has no {CONFIG} (amlp-fairseq package makes one)")
    try:
        config = _content(path)
        version = FORMAT if "members" in config else config["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if "members" in config:
        names = ", ".join(map(str, _members(folder)))
        raise ValueError(f"{folder} is an ensemble, and one model is needed here: {names}")
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}; this version of amlp_fairseq reads {FORMAT}: install a newer one"
        )
    if missing := [key for key in KEYS if key not in config]:
        raise ValueError(f"{path} is damaged: it has no {', '.join(missing)}")
    return with_present_names(copy.deepcopy(config))


def _content(path: Path) -> Any:
    """The content of a JSON file, shared: callers do not change it."""
    state = path.stat()
    return _parsed(path, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=8)
def _parsed(path: Path, state: tuple[int, ...]) -> Any:
    """The content of a JSON file, cached while its state (device, inode, bytes, ns) is the same: a command's options,
    ``Translator`` and fairseq's loading of checkpoints all read it."""
    return json.loads(path.read_text(encoding="utf-8"))


def splits_sentences(config: Mapping[str, Any]) -> bool:
    """False for a model that reads documents, as ``split_sentences`` says: it summarises."""
    return bool(config.get("split_sentences", True))


def check_files(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError for a file that is missing or was changed after ``write``."""
    for name, expected in config.get("checksums", {}).items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder} has no {name}, with which it was made")
        if sha256(path) != expected:
            raise ValueError(
                f"{path} is not the file that the model was made with (config.json has another SHA-256): put that one "
                "back, or make the folder anew with amlp-fairseq package"
            )
