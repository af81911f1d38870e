"""Results: lines of JSON, one for each way of decoding a trained model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from amlp_fairseq.common.files import locked, naming, sha256
from amlp_fairseq.training.config import Recipe
from amlp_fairseq.training.data_folder import is_distilled
from amlp_fairseq.training.engine import engine_of

#: The "way of decoding" of a result of ``examples/word_dependence/pmi.py``, for which nothing is decoded.
PERPLEXITY = "perplexity"


def read_results(path: Path) -> list[dict[str, Any]]:
    """All lines, each with its ``split``, ``valid`` or ``test``, and those that say a time with the ``engine`` of it.

    Raises:
        ValueError: naming a line that is damaged, or no result.
    """
    lines = []
    for number, text in enumerate(_whole(path).splitlines(), 1):  # of bytes: a string has other ends of lines, too
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is damaged: {error}") from None
    for line in lines:
        if not isinstance(line, dict):
            raise ValueError(f"{path}: {str(line)[:40]!r} is not a result of amlp-fairseq evaluate")
        # The first results do not have it: they are of test sets, unless the set is the embedded corpus' "valid".
        line.setdefault("split", "valid" if line.get("subset") == "valid" else "test")
        if "milliseconds_per_sentence" in line:
            line["engine"] = engine_of(line)
    return lines


def append_results(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Add whole lines to a file that others may write to as well; all of them, or none.

    Raises:
        OSError: naming the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
    with locked(path.with_name(f"{path.name}.lock")):
        before = _whole(path) if path.is_file() else b""
        if path.is_file():
            os.truncate(path, len(before))
        try:
            with naming(path), path.open("a", encoding="utf-8") as file:
                file.write(text if before[-1:] in (b"", b"\n") else "\n" + text)
        except OSError:
            if path.is_file():
                os.truncate(path, len(before))
            raise


def run_missing(
    path: Path | None, runs: Iterable[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """The results of runs, of which each is the fields that identify it and a function that returns its other fields.
    A run whose result is in the file is not repeated; the results of others are appended to it.

    Raises:
        OSError: naming the file.
    """
    known, lines = [], []
    if path is not None:
        append_results(path, [])  # can it be written?
        known = read_results(path)
    for identity, run in runs:
        line = next((line for line in reversed(known) if line | identity == line), None)
        if line is None:
            line = identity | run()
            known.append(line)
            if path is not None:
                append_results(path, [line])
        lines.append(line)
    return lines


def _whole(path: Path) -> bytes:
    """A file's content without the part of a line that a process was writing when it was killed, or is writing."""
    with open(path, "rb") as file:
        content = file.read()
    begin = content.rfind(b"\n") + 1
    try:
        json.loads(content[begin:] or b"{}")  # somebody may have edited the file, and left no line feed
    except ValueError:
        return content[:begin]
    return content


def facts(recipe: Recipe, data: Path, text: dict[str, Any], split: str, decoding: str) -> dict[str, Any]:
    """The fields that say what a result is of.

    Args:
        recipe: of the training.
        data: the data folder, and ``text`` its ``text_settings``.
        split: ``valid`` or ``test``.
        decoding: the name of the way of decoding.
    """
    return {
        "data": text["name"],
        **({"variant": text["variant"]} if text.get("variant") else {}),
        "scale": recipe.scale,
        "system": recipe.row,
        **({"training_options": recipe.changes} if recipe.changes else {}),
        "distilled": is_distilled(data) if recipe.distilled is None else recipe.distilled,
        "split": split,
        "subset": text[f"{split}_set"],
        "data_sha256": data_sha256(data, split),
        "decoding": decoding,
    }


def data_sha256(folder: Path, split: str) -> str:
    """Identity of the data that are decoded: a checksum over the names and contents of the dictionaries and of a split,
    binarised and raw; the first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("dict*.txt"), *folder.glob(f"{split}.*"), *folder.glob(f"raw/{split}.*")]):
        digest.update(f"{path.relative_to(folder)} {sha256(path)}\n".encode())
    return digest.hexdigest()[:16]


def same_data(line: dict[str, Any], data_sha256: str | None, name: str) -> bool:
    """True if a result is of the data with this checksum (None: unknown) and name. Old results have no checksum: for
    them the name counts."""
    known = line.get("data_sha256")
    return line.get("data") == name if known is None or data_sha256 is None else known == data_sha256


def in_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned, for a terminal."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (columns, *rows)
    ]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
