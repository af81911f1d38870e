"""Facts that recipes read from a data folder, and the options that choose a configuration."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amlp_fairseq.common.arguments import folder
from amlp_fairseq.training.config import Recipe, load, names

#: The output of fairseq-preprocess, in the folder that ``amlp-fairseq prepare`` writes.
BINARISED = "data-bin"


def recipe_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """``--row``, ``--scale`` and ``--corpus``."""
    rows = ", ".join(names("rows"))
    parser.add_argument("--row", metavar="ROW", required=required, help=f"one of {rows}, or a file like theirs")
    scales = ", ".join(names("scale"))
    parser.add_argument("--scale", metavar="SCALE", required=required, help=f"one of {scales}, or a file like theirs")
    parser.add_argument("--corpus", metavar="NAME", help="a corpus of configs/data (default: that of DATA/text.json)")


def data_folder(text: str) -> Path:
    """The folder of binarised data that is meant by itself or by the folder of ``amlp-fairseq prepare`` around it."""
    given = folder(text)
    return given / BINARISED if (given / BINARISED).is_dir() and not any(given.glob("dict.*.txt")) else given


def with_data_folder(words: Sequence[str]) -> list[str]:
    """A command line of fairseq that begins with DATA, which may be the folder of ``amlp-fairseq prepare``."""
    first = [str(data_folder(word)) for word in words[:1] if not word.startswith("-") and ":" not in word]
    return [*first, *words[len(first) :]]


def stored_text(data: Path) -> dict[str, Any] | None:
    """The content of ``text.json`` of a data folder; None without the file.

    Raises:
        ValueError: if it is damaged.
    """
    path = data / "text.json"
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def text_settings(data: Path, corpus: str | None = None) -> dict[str, Any]:
    """``text.json`` of a data folder: ``name``, ``corpus`` (of configs/data, or ""), its ``variant`` (or ""),
    ``languages``, ``post_process``, ``tokenizer``, names of the evaluation sets.

    If the user names a corpus, ``languages`` is None: they are those of its configuration.

    Args:
        data: the folder; one that fairseq-preprocess made has no text.json.
        corpus: the name that the user gives, which wins.

    Raises:
        ValueError: if the folder has no text.json and no name is given, and as ``stored_text``.
    """
    found: dict[str, Any] = {"name": data.resolve().name, "corpus": "", "languages": None}
    stored = stored_text(data)
    if stored is not None:
        found |= stored
    elif corpus is None:
        raise ValueError(f"DATA {data} has no text.json, which amlp-fairseq prepare writes; name its --corpus")
    if corpus is not None:
        found |= {"name": corpus, "corpus": corpus, "languages": None}
    return found


def chosen_recipe(row: str, scale: str, text: dict[str, Any]) -> Recipe:
    """The configuration of an experiment on a data folder.

    Args:
        row: a name or a file, likewise ``scale``.
        text: what ``text_settings`` says of the folder.

    Raises:
        ValueError: for a row of translation on text of one language; for language models on pairs, or at a scale that
            has settings of an encoder.
    """
    recipe = load(row, text["corpus"], scale, text["languages"])
    language_model = recipe.task.get("task") == "language_modeling"
    if language_model != (recipe.metric == "perplexity"):
        model, content = "a translation model", "text of one language"
        if language_model:
            model, content = "a language model", "pairs of sentences"
        raise ValueError(f"--row {row} is {model}, DATA {text['name']} has {content}")
    if language_model and "encoder-layers" in recipe.train:
        raise ValueError(f"--scale {scale} is for models with an encoder; for language models: embedded_lm, paper")
    return recipe


def usual_scale(corpus: str) -> str:
    """The scale for a corpus of configs/data, or for text of one's own (``""``)."""
    return corpus if corpus in names("scale") else "paper" if corpus else "multi30k"


def is_distilled(data: Path) -> bool:
    """True if the targets of a data folder are a teacher's translations."""
    return (data / "manifest.json").is_file()
