"""Folders of models that are damaged, or made to do damage, end in one line that names the file, or translate."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from amlp_fairseq import Translator
from amlp_fairseq.engine.model import Model, ParallelModel, RefinementOptions, SearchOptions
from amlp_fairseq.engine.safetensors import Tensors

MODELS = commands.ROOT / "examples/models"
NAMES = sorted(path.name for path in MODELS.iterdir() if path.is_dir())
#: Values that a number, a word or a part of a description may have by mistake, or by intent.
VALUES: list[Any] = [-1, 0, 1, 7, 1 << 40, -(1 << 63), 1 << 63, 0.5, float("nan"), "", "x", None, [], {}, True]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a JSON value: all of its parts."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a place."""
    copy = json.loads(json.dumps(value))
    part = copy
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = new
    return copy


def refused_or_decodes(config: dict[str, Any], folder: Path) -> bool:
    """True if the engine takes the folder, and then finds something, or nothing; the only other end is one line."""
    sources, message = [[5, 6, 2], [4, 2]], ""
    try:
        if config["task"]["_name"] == "translation_cmlmc":
            ParallelModel.of_folder(folder, config).search(sources, RefinementOptions(1, 2))
        else:
            Model.of_folder(folder, config).search(sources, SearchOptions(beam=2, max_len_b=5, min_len=0))
    except (ValueError, RuntimeError) as error:
        message = str(error)
    assert len(message.splitlines()) < 2
    return not message


@pytest.mark.parametrize("name", NAMES)
def test_any_other_description(name: str) -> None:
    """Every place of the description has four other values, one after the other."""
    config = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    assert refused_or_decodes(config, MODELS / name)
    places = [path for path in leaves(config["description"]) if path[-1] != "unsupported"]
    chance = random.Random(name)
    taken = 0
    for path in places:
        for value in chance.sample(VALUES, 4):
            taken += refused_or_decodes(
                {**config, "description": with_value(config["description"], path, value)}, MODELS / name
            )
    assert taken < len(places) * 2  # most of it matters


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.99, 0.99999])
def test_weights_that_end_early(share: float, tmp_path: Path) -> None:
    folder = tmp_path / "ar"
    shutil.copytree(MODELS / "ar", folder)
    os.truncate(folder / "model.safetensors", int(share * (folder / "model.safetensors").stat().st_size))
    with pytest.raises(ValueError, match=r"model\.safetensors is (damaged|not the file)"):
        Translator(folder, backend="engine")


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "integers": lambda tensor: tensor.long(),
    "bytes": lambda tensor: tensor.to(torch.int8),
    "transposed": lambda tensor: tensor.t().contiguous(),
    "flat": lambda tensor: tensor.flatten(),
    "one row": lambda tensor: tensor[:1],
    "one more row": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "nothing": lambda tensor: tensor[:0],
    "a million rows": lambda tensor: torch.zeros(1_000_000, 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_of_other_types_and_sizes(change: str, tmp_path: Path) -> None:
    """A refusal, or, where the values are of another type or the size is what is told, an output."""
    config = json.loads((MODELS / "ibdecoder/config.json").read_text(encoding="utf-8"))
    weights = load_file(MODELS / "ibdecoder/model.safetensors")
    matrices = [name for name, tensor in weights.items() if tensor.dim() == 2]
    for name in matrices:
        save_file({**weights, name: CHANGES[change](weights[name])}, tmp_path / "model.safetensors")
        taken = refused_or_decodes(config, tmp_path)
        assert taken <= (change in ("integers", "bytes", "transposed", "flat"))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e38])
def test_weights_that_are_no_numbers(wrong: float, tmp_path: Path) -> None:
    """What cannot be translated is said; nothing else happens."""
    folder = tmp_path / "ar"
    shutil.copytree(MODELS / "ar", folder)
    weights = load_file(folder / "model.safetensors")
    weights["decoder.layers.0.fc1.weight"][3, 3] = wrong
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["checksums"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for dtype in ("float32", "int8"):
        message = "a sentence has no translation"
        with contextlib.suppress(ValueError):
            (message,) = Translator(folder, backend="engine", decode_dtype=dtype).translate(["She falls asleep."])
        assert message


def test_names_that_point_elsewhere(tmp_path: Path) -> None:
    """Shared weights of names that there are not, and of themselves."""
    config = json.loads((MODELS / "ar/config.json").read_text(encoding="utf-8"))
    for shared in ({"decoder.embed_tokens.weight": "x"}, {"a": "b", "b": "a"}, {"x": None}, {"x": []}, [], "x"):
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            Model.of_folder(MODELS / "ar", {**config, "shared_weights": shared})


def test_tokens_that_there_are_not() -> None:
    config = json.loads((MODELS / "ar/config.json").read_text(encoding="utf-8"))
    model = Model.of_folder(MODELS / "ar", config)
    for token in (-1, 752, 1 << 30):
        with pytest.raises(ValueError, match=f"no such token: {token}"):
            model.search([[4, token, 2]], SearchOptions())


def test_headers_of_safetensors_at_random(tmp_path: Path) -> None:
    """Bytes of the header are changed: the tensors are read, or one line names the file."""
    whole = (MODELS / "ar/model.safetensors").read_bytes()
    size = 8 + int.from_bytes(whole[:8], "little")
    chance = np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(whole)
        for place in chance.integers(0, size, 3):
            changed[place] = int(chance.integers(256))
        (tmp_path / "x").write_bytes(changed)
        message = f"{tmp_path / 'x'} is damaged: "
        try:
            Tensors(tmp_path / "x")
        except ValueError as error:
            message = str(error)
        assert message.startswith(f"{tmp_path / 'x'} is damaged: ")
