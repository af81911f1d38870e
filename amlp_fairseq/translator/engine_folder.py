"""The model of a folder in the engine, with its dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from amlp_fairseq.engine.model import EngineModel
from amlp_fairseq.model_folder.config import check_files
from amlp_fairseq.text.dictionary import Dictionary, fingerprint


class EngineFolder:
    """A model folder in the engine.

    Args:
        kind: the class of its model.
        folder: of ``amlp-fairseq package``.
        config: its ``config.json``.
        decode_dtype: None: the type in which its weights are stored.

    Raises:
        UnsupportedError: for a model or a type that the engine does not have.
        ValueError: for a damaged folder.
    """

    def __init__(
        self, kind: type[EngineModel], folder: Path, config: Mapping[str, Any], decode_dtype: str | None
    ) -> None:
        task = config["task"]
        self.folder, self.config = folder, config
        self.model = kind.of_folder(folder, config, decode_dtype)
        check_files(folder, config)
        source, target = (folder / f"dict.{task[name]}.txt" for name in ("source_lang", "target_lang"))
        sums = config.get("checksums", {})
        self.source = Dictionary(source)
        if sums.get(source.name, source) == sums.get(target.name, target):  # one dictionary of both is read once
            self.target = copy(self.source)
            self.target.path = target
        else:
            self.target = Dictionary(target)
        for side, dictionary, rows in zip(
            ("encoder", "decoder"), (self.source, self.target), self.model.vocabularies, strict=True
        ):
            if len(dictionary) != rows:
                sizes = f"it has {len(dictionary)} entries, the {side}'s embedding {rows}"
                raise ValueError(f"{dictionary.path} is not the dictionary of the model: {sizes}")
        trained = config["task_state"].get("dictionaries") or {}
        for side, dictionary in (("source", self.source), ("target", self.target)):
            if trained.get(side, own := fingerprint(dictionary.symbols)) != own:
                raise ValueError(
                    f"the {side} dictionary of {folder} ({own}) is not the one that the model was trained with "
                    f"({trained[side]})"
                )
