"""Text files, each translated into a file of the same name: in this process, or by workers of Ray.

A file is translated under a hidden name and renamed when it is whole, so whatever stops a run, the same command goes on
with the files that are missing, and several machines may work on one folder: a file that another one has finished
meanwhile is done (docs/large-corpora.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amlp_fairseq.common.files import checksums, remove_parts, resume, writing
from amlp_fairseq.common.lines import count_lines
from amlp_fairseq.model_folder.config import CARD, read_config, splits_sentences
from amlp_fairseq.translator.files import as_json, say, translated
from amlp_fairseq.translator.options import files
from amlp_fairseq.translator.translator import Translator

#: The file with the settings that a folder's files were translated with.
SETTINGS = ".settings.json"


@dataclass(frozen=True)
class Shard:
    """A text file, and where its translation goes."""

    source: Path
    output: Path


@dataclass(frozen=True)
class Job:
    """Settings for translating shards.

    Attributes:
        model: a model folder.
        settings: keyword arguments of ``Translator``.
        jsonl, buffer_size: as ``amlp-fairseq translate`` takes them.
    """

    model: Path
    settings: dict[str, Any]
    jsonl: bool
    buffer_size: int

    def translator(self) -> Translator:
        return Translator(self.model, **self.settings)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the translations depend on, as JSON data: files by their checksums, and what they say where
        nothing is given."""
        of_the_machine = {"device", "max_tokens", "inter_threads", "intra_threads"}
        others = {name: value for name, value in self.settings.items() if name not in of_the_machine}
        config = read_config(self.model)
        options = config["decoding"] | self.settings
        if others.get("split_sentences") is None:
            others["split_sentences"] = splits_sentences(config)
        helpers = {name: _checksums(Path(value)) for name, value in files(options).items()}
        identity = {"model": _checksums(self.model), "jsonl": self.jsonl, **others, **helpers}
        return dict(json.loads(json.dumps(identity, default=str)))


@dataclass(frozen=True)
class Outcome:
    """Result of a shard: its number of lines, and of those with a sentence that was cut; or why it is not
    translated."""

    name: str
    lines: int = 0
    error: str | None = None
    cut: int = 0

    def __str__(self) -> str:
        cut = f", {self.cut} with a sentence of more than --max-length pieces, which was cut" if self.cut else ""
        return f"{self.name}: {self.error or f'{self.lines} lines{cut}'}"


def find(paths: Iterable[Path], out: Path) -> list[Shard]:
    """The shards of files, and of folders: of these all files that are not hidden, by name.

    Raises:
        ValueError: for what cannot be translated into ``out``; names it.
    """
    sources: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"--shards {path} does not exist")
        if path.is_dir() and path.resolve() in out.resolve().parents:
            raise ValueError(f"--output {out} is in the folder of --shards {path}: name another one")
        inside = sorted(each for each in path.iterdir() if each.name[0] != ".") if path.is_dir() else [path]
        if folders := [each for each in inside if each.is_dir()]:
            raise ValueError(f"--shards {path} has the folder {folders[0].name}: name the folders that have the files")
        sources += inside
    if not sources:
        raise ValueError("--shards: there is no file to translate")
    shards: dict[str, Shard] = {}
    for source in sources:
        if source.name in shards:
            raise ValueError(f"--shards: {shards[source.name].source} and {source} would have the same output")
        if source.parent.resolve() == out.resolve():
            raise ValueError(f"--output {out} is the folder of --shards: name another one")
        shards[source.name] = Shard(source.absolute(), out.absolute() / source.name)
    return list(shards.values())


def begin(out: Path, shards: list[Shard], identity: dict[str, Any]) -> list[Shard]:
    """Make the folder of the output, or check the one that is there; returns the shards that are missing in it.

    Raises:
        ValueError: for files that were not made by this command, or with other settings, or of another number of lines.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--output {out} is a file: with --shards a folder is needed")
    out.mkdir(parents=True, exist_ok=True)
    missing = [shard for shard in shards if not shard.output.exists()]
    settings = out / SETTINGS
    if not settings.exists() and len(missing) < len(shards):
        raise ValueError(f"--output {out} has files of these names that were not made by --shards: name another")
    if changed := resume(settings, identity):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(changed))
        raise ValueError(f"--output {out} was begun with other {flags} ({SETTINGS} in it): name another folder")
    for shard in shards:
        if shard.output.exists() and (lines := count_lines(shard.output)) != (expected := count_lines(shard.source)):
            counts = f"{shard.source} has {expected} lines, {shard.output} has {lines}"
            raise ValueError(f"{counts}: delete the latter, and it is made again")
    return missing


def translate(translator: Translator, shard: Shard, job: Job) -> Outcome:
    """Translate a shard, unless another process has. Its output appears when it is whole; a line that is too long, or a
    file that cannot be read or written, is the outcome's error."""
    lines = cut = 0
    try:
        if not shard.output.exists():
            with writing(shard.output, unique=True) as (file,):
                for line, translation in translated(translator, shard.source, job.buffer_size):
                    print(as_json(line, translation) if job.jsonl else translation.text, file=file)
                    cut += translation.cuts > 0
                    lines += 1
                if lines != (expected := count_lines(shard.source)):
                    raise ValueError(f"{expected} lines became {lines}: has the file changed meanwhile?")
    except (ValueError, OSError) as error:
        if not shard.output.exists():  # or another process has been faster, and has removed the part
            return Outcome(shard.source.name, error=" ".join(str(error).split()))
    return Outcome(shard.source.name, count_lines(shard.output), cut=cut)


#: A function that translates shards: the outcome of each, as they end.
Outcomes = Callable[[Job, list[Shard]], Iterator[Outcome]]


def here(job: Job, shards: list[Shard]) -> Iterator[Outcome]:
    """Translate shards in this process."""
    translator = job.translator()
    return (translate(translator, shard, job) for shard in shards)


def run(job: Job, paths: Iterable[Path], out: Path, outcomes: Outcomes = here) -> None:
    """Translate all shards that are not translated yet, saying on standard error which are.

    Args:
        outcomes: what translates them.

    Raises:
        ValueError: if a shard could not be translated; the others are.
    """
    shards = find(paths, out)
    missing = begin(out, shards, job.identity)
    say(f"{len(missing)} of {len(shards)} files to translate")
    failed = 0
    for number, outcome in enumerate(outcomes(job, missing) if missing else (), 1):
        failed += outcome.error is not None
        say(f"{number} of {len(missing)}: {outcome}")
    if failed:
        raise ValueError(f"{failed} of {len(missing)} files are not translated; the same command tries them again")
    for shard in shards:  # parts of processes that were killed, or that are slower: all outputs are there
        remove_parts(shard.output)


def _checksums(path: Path) -> dict[str, str]:
    """Checksums of a file, or of the files of a model folder."""
    if not path.is_dir():
        return checksums(path.parent, [path.name])
    return checksums(path, (each.name for each in path.iterdir() if each.is_file() and each.name != CARD))
