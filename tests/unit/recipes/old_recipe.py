"""Configurations: what ``configs/<dataset>/<row>.yaml`` says about one experiment.

    base: ../_ibdecoder.yaml          a file or a list of files, relative to this one; later ones win
    task: {task: translation}         flags of fairseq-train and fairseq-generate
    train: {arch: transformer}        flags of fairseq-train
    tokens-per-update: 25000          target tokens of one update, whatever the hardware
    generate: {beam 4: {beam: 4}}     ways of decoding: a name, and flags of fairseq-generate
    tune-lenpen: [0.0, 0.6, 1.0]      length penalties of which the best on the validation set is taken
    average: {last-epochs: 5}         the checkpoints that are averaged: a flag of amlp-average-checkpoints
    average: {tune: [5, 10, 20]}      numbers of last epochs of which the best on the validation set is taken
    dictionary: 32768                 words of the dictionary, for counting parameters
    published: [{table: …}]           where the row stands in a paper, and its numbers there

Flags are fairseq's without the dashes. ``true`` gives a flag without a value; ``false`` and ``null`` take away what a
base has.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).parent.parent / "configs"
#: What --user-dir must be.
PLUGIN = Path(__file__).parent.parent / "amlp_fairseq"
SECTIONS = ("task", "train", "tokens-per-update", "generate", "tune-lenpen", "average", "dictionary", "published")
PUBLISHED = (
    *("table", "row", "decoding", "kind", "split", "bleu", "distilled", "speedup", "sentences-per-second"),
    *("parameters", "over", "note"),
)
AVERAGES = ("last-epochs", "last-updates", "best")
#: The kinds of BLEU that papers report; scores of two kinds are not comparable. ``kytea``: tokenised by that program.
KINDS = ("detokenised", "tokenised", "compound-split", "kytea", "unstated")
#: The parts of the data that are decoded; published numbers are of the test set where they do not say ``valid``.
SPLITS = ("valid", "test")


@dataclass(frozen=True)
class Recipe:
    """A configuration with its bases merged; the sections are described at the top of this file."""

    path: Path
    task: dict[str, Any]
    train: dict[str, Any]
    tokens_per_update: int | None
    generate: dict[str, dict[str, Any]]
    tune_lenpen: list[float]
    averages: list[tuple[str, int]]
    dictionary: int | None
    published: list[dict[str, Any]]

    @property
    def dataset(self) -> str:
        return self.path.parent.name

    @property
    def row(self) -> str:
        return self.path.stem


def load(path: Path) -> Recipe:
    """Read a configuration.

    Raises:
        ValueError: if a file has an unknown section or key, or a value that cannot be a flag's; names file and key.
        OSError: if a file cannot be read.
    """
    merged = _merged(path.resolve())
    merged.pop("base", None)
    recipe = Recipe(
        path=path.resolve(),
        task=merged.get("task", {}),
        train=merged.get("train", {}),
        tokens_per_update=merged.get("tokens-per-update"),
        generate={name: values for name, values in merged.get("generate", {}).items() if values is not None},
        tune_lenpen=merged.get("tune-lenpen") or [],
        averages=_averages(merged.get("average"), path),
        dictionary=merged.get("dictionary"),
        published=merged.get("published", []),
    )
    for values in (recipe.task, recipe.train, *recipe.generate.values()):
        flags(values, path)
    for entry in recipe.published:
        if unknown := set(entry) - set(PUBLISHED):
            raise ValueError(f"{path}: published has {sorted(unknown)}; known: {', '.join(PUBLISHED)}")
        if entry.get("kind", "unstated") not in KINDS:
            raise ValueError(f"{path}: published, kind {entry['kind']!r}: choose one of {', '.join(KINDS)}")
        if entry.get("split", "test") not in SPLITS:
            raise ValueError(f"{path}: published, split {entry['split']!r}: choose one of {', '.join(SPLITS)}")
    return recipe


def _averages(section: Any, path: Path) -> list[tuple[str, int]]:
    """The flags of amlp-average-checkpoints to choose from; most checkpoints first, so that missing ones show early."""
    if isinstance(section, dict) and len(section) == 1:
        ((name, value),) = section.items()
        counts = value if name == "tune" and isinstance(value, list) else [value] if name in AVERAGES else []
        if counts and all(type(count) is int and count > 0 for count in counts):
            return [("last-epochs" if name == "tune" else name, count) for count in sorted(counts, reverse=True)]
    raise ValueError(
        f"{path}: average must be one of {', '.join(AVERAGES)} with a positive number, or tune with a list of them, "
        f"not {section}"
    )


def flags(values: dict[str, Any], path: Path) -> list[str]:
    """A section as words of a command line.

    Raises:
        ValueError: for a value that is no text, number, truth value or null.
    """
    words = []
    for name, value in values.items():
        if isinstance(value, (list, dict)):
            raise ValueError(f"{path}: {name} must be a text or number as on the command line, not {value}")
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def quoted(words: Iterable[object]) -> str:
    """A command that can be pasted into a shell."""
    return shlex.join(str(word) for word in words)


def _merged(path: Path) -> dict[str, Any]:
    own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if unknown := set(own) - {"base", *SECTIONS}:
        raise ValueError(f"{path}: unknown section {sorted(unknown)}; known: base, {', '.join(SECTIONS)}")
    bases = own.get("base", [])
    result: dict[str, Any] = {}
    for layer in [_merged(path.parent / base) for base in ([bases] if isinstance(bases, str) else bases)] + [own]:
        for section, value in layer.items():
            old = result.get(section)
            if section == "average" or not (isinstance(value, dict) and isinstance(old, dict)):
                result[section] = value
            else:
                result[section] = old | value
    return result
