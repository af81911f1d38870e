"""The model folder: weights, dictionaries, subword model, and decoding options of one model.

    config.json        task, model, text and decoding options
    model.safetensors  the weights
    dict.*.txt         the dictionaries
    bpecodes or sentencepiece.bpe.model, if words are split into subwords
    shortlist.safetensors, if translations have the words of a lexical shortlist (``engine/shortlist.py``)
    README.md          the model card

fairseq reads it as a checkpoint (``--path DIR``, see ``as_checkpoint.py``). It has data alone: no pickle is read.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from omegaconf import OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from amlp_fairseq.common.files import checksums
from amlp_fairseq.compat.internals import TASK_DATACLASS_REGISTRY, FairseqConfig
from amlp_fairseq.engine.shortlist import FILE as SHORTLIST
from amlp_fairseq.model_folder.config import CONFIG, FORMAT, WEIGHTS, check_files, read_config

#: Groups of fairseq's configuration that do not describe a model.
_OTHER_GROUPS = (
    *("common", "common_eval", "distributed_training", "dataset", "optimization", "checkpoint", "bmuf", "generation"),
    *("eval_lm", "interactive", "optimizer", "lr_scheduler", "scoring", "ema"),
)
#: Tasks that add no symbols to their dictionaries.
PLAIN_TASKS = ("translation", "translation_interleaved", "translation_cmlmc", "translation_lev")
#: Suffix of the name of the scales (rows,) of an int8 matrix (rows, columns).
_SCALES = ":scales"


def write(
    folder: Path, state: Mapping[str, Any], weights: str, config: dict[str, Any], files: Mapping[str, Path]
) -> None:
    """Make the folder of a model.

    Args:
        folder: a new folder in an existing one.
        state: a checkpoint of fairseq.
        weights: the type to store weights in, one of ``WEIGHT_TYPES``.
        config: ``languages``, ``text`` and ``decoding``, see :func:`read_config`.
        files: files to copy, by their names in the folder: dictionaries and the subword model.
    """
    cfg = state["cfg"]
    task, model = cfg["task"], cfg["model"]
    task = dict(vars(task) if isinstance(task, argparse.Namespace) else task)
    legacy = isinstance(model, argparse.Namespace)
    options = vars(model) if legacy else dict(model)
    unrelated = {name for group in _OTHER_GROUPS for name in (cfg.get(group) or {})} | {*task, "user_dir"}
    if legacy:
        related = ("_name", "arch", "max_source_positions", "max_target_positions")
        options = {name: value for name, value in options.items() if name not in unrelated or name in related}
    for path in ("data", "shortlist"):
        task.pop(path, None)
    shared = _shared(state["model"])
    content = {
        "format": FORMAT,
        **config,
        "weights": weights,
        "shared_weights": shared,
        "updates": state["optimizer_history"][-1].get("num_updates", 0),
        "task": _plain(task),
        "task_state": _plain(state.get("task_state", {})),
        "model": _plain(options),
        "model_options": "namespace" if legacy else "config",
        "criterion": _plain(cfg.get("criterion")),
    }
    folder.mkdir()
    for name, file in files.items():
        shutil.copy(file, folder / name)
    (folder / WEIGHTS).write_bytes(save(_stored(state["model"], weights, shared)))
    content["checksums"] = checksums(folder, (*files, WEIGHTS))
    _write_config(folder, content)  # last: without it the folder is not a model


def add(folder: Path, key: str, value: object) -> None:
    """Give the config.json of a model's folder one more entry."""
    _write_config(folder, json.loads((folder / CONFIG).read_text(encoding="utf-8")) | {key: value})


def write_members(folder: Path, names: Sequence[str]) -> None:
    """Write the config.json of an ensemble, whose models are the folders of these names in it."""
    _write_config(folder, {"format": FORMAT, "members": [*names]})


def _write_config(folder: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """The checkpoint that the folder was made of, as from ``torch.load``, without the optimizer; weights in float32 if
    they were stored as int8.

    Raises:
        ValueError: if the folder is damaged, or one of its files was changed; names the file.
    """
    config = read_config(folder)
    try:
        weights = _restored(load_file(folder / WEIGHTS), config["shared_weights"])
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged: {error}") from None
    check_files(folder, config)
    defaults = {name: field.default for name, field in FairseqConfig.__dataclass_fields__.items()}
    cfg: dict[str, Any] = {
        name: asdict(default()) if isinstance(default, type) else None for name, default in defaults.items()
    }
    cfg["task"] = {**config["task"], "data": str(folder)}
    cfg["model"], cfg["criterion"] = config["model"], config["criterion"]
    if config["model_options"] == "namespace":
        cfg["model"] = argparse.Namespace(**config["model"], data=str(folder))
    cfg["generation"] |= {name: value for name, value in config["decoding"].items() if name in cfg["generation"]}
    kind = TASK_DATACLASS_REGISTRY.get(config["task"]["_name"])  # checkpoints of older versions lack its newer options
    known = config["task"].keys() | (kind.__dataclass_fields__.keys() if kind else set())
    cfg["task"] |= {name: value for name, value in config["decoding"].items() if name in known}
    if "shortlist" in known and (folder / SHORTLIST).is_file():
        cfg["task"]["shortlist"] = str(folder / SHORTLIST)
    if kind is None:
        cfg["task"] = argparse.Namespace(**cfg["task"])
    state = {
        "args": None,
        "cfg": OmegaConf.create(cfg, flags={"allow_objects": True}),
        "model": weights,
        "criterion": None,
        "task_state": config["task_state"],
        "optimizer_history": [
            {
                "criterion_name": None,
                "optimizer_name": None,
                "lr_scheduler_state": {},
                "num_updates": config["updates"],
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    check_dictionaries(state, [folder / f"dict.{language}.txt" for language in config["languages"]])
    return state


def check_dictionaries(state: Mapping[str, Any], dictionaries: Sequence[Path]) -> None:
    """Raise ValueError for a dictionary with another number of entries than its embedding.

    Args:
        state: a checkpoint.
        dictionaries: of the source and of the target; missing files are not checked.
    """
    for side, path in zip(("encoder", "decoder"), dictionaries, strict=True):
        table = state["model"].get(f"{side}.embed_tokens.weight") if path.is_file() else None
        if table is not None and len(table) != (entries := len(Dictionary.load(str(path)))):
            sizes = f"it has {entries} entries, the {side}'s embedding {len(table)}"
            raise ValueError(f"{path} is not the dictionary of the model: {sizes}")


def _shared(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Tied embeddings: names of matrices, by names of later matrices with the same values, which are not stored."""
    distinct: dict[tuple[torch.Size, torch.dtype], list[str]] = {}
    shared = {}
    for name, weight in weights.items():
        candidates = distinct.setdefault((weight.shape, weight.dtype), [])
        same = next((candidate for candidate in candidates if torch.equal(weights[candidate], weight)), None)
        if same is None:
            candidates.append(name)
        elif weight.dim() == 2:
            shared[name] = same
    return shared


def _stored(weights: Mapping[str, Tensor], kind: str, shared: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights to store, in type ``kind``; shared ones once."""
    result = {}
    for name, weight in weights.items():
        if name in shared:
            continue
        weight = weight.detach().contiguous().clone()
        if weight.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            if kind == "int8" and weight.dim() == 2:
                weight, result[name + _SCALES] = _int8_and_scales(weight.float())
            else:
                weight = weight.to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
        result[name] = weight
    return result


def _int8_and_scales(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (rows, columns) as int8, and the scales of its rows (rows,), as ``--decode-dtype int8`` has them."""
    scales = weight.abs().amax(dim=1) / 127
    scales[scales == 0] = 1
    return (weight / scales.unsqueeze(1)).round().to(torch.int8), scales


def _restored(stored: Mapping[str, Tensor], shared: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights of stored ones, int8 as float32."""
    result = {}
    for name, weight in stored.items():
        if name.endswith(_SCALES):
            continue
        scales = stored.get(name + _SCALES)
        result[name] = weight if scales is None else weight.float() * scales.unsqueeze(1)
    return result | {name: result[first] for name, first in shared.items()}


def _plain(value: object) -> Any:
    """A value as JSON data."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
