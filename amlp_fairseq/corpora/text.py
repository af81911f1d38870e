"""The text of a corpus: from archives to the pieces that fairseq-preprocess reads.

OUT/text has the stages ``raw``, ``words`` (tokenised) and ``pieces``, and the model of the subword units. A file gets
its name when it is complete; complete files are not made again.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from amlp_fairseq.common.files import writing
from amlp_fairseq.common.lines import count_lines, lines
from amlp_fairseq.corpora.archives import Row, archive_rows, evaluation_rows
from amlp_fairseq.text.subwords import MODELS, Segmenter, learn
from amlp_fairseq.text.tokenizers import Tokenizer, Words
from amlp_fairseq.training.config import SPLITS


def write_rows(rows: Iterable[Row], paths: Sequence[Path]) -> None:
    """Write one file for each language."""
    with writing(*paths) as files:
        for row in rows:
            for text, file in zip(row, files, strict=True):
                file.write(text + "\n")


def filled(rows: Iterable[Row], name: str) -> Iterator[Row]:
    """Leave out rows with an empty side; at the end say how many there were."""
    count = 0
    for row in rows:
        if all(row):
            yield row
        else:
            count += 1
    if count:
        print(f"prepare: {name}: {count} left out, of which a side is empty", file=sys.stderr)


def map_lines(function: Callable[[str], str], source: Path, target: Path, workers: int) -> None:
    """Write the function's value for every line of a file."""
    with ExitStack() as stack:
        (file,) = stack.enter_context(writing(target))
        if workers > 1:
            pool = stack.enter_context(multiprocessing.Pool(workers))
            results: Iterable[str] = pool.imap(function, lines(source), chunksize=500)
        else:
            results = map(function, lines(source))
        for result in results:
            file.write(result + "\n")
        if workers > 1:
            pool.close()  # or it ends its workers by SIGTERM, which Python forgets in one that has hardly begun
            pool.join()


def is_good(first: str, second: str, max_length: int, max_ratio: float) -> bool:
    """True if both sides have 1 to ``max_length`` words and neither ``max_ratio`` times as many as the other."""
    lengths = sorted(len(text.split()) for text in (first, second))
    return lengths[0] >= 1 and lengths[1] <= min(max_length, max_ratio * lengths[0])


@dataclass(frozen=True)
class Settings:
    """Settings for preparing a corpus.

    Attributes:
        name: of the corpus.
        languages: both, in the order of patterns with ``|``; one of text for language models.
        reverse: whether the second language is the source.
        train: archives and patterns, see ``archive_rows``; likewise ``valid`` and ``test``.
        valid_set: the name of the validation set; if it has no archives, names of sacreBLEU's sets; likewise
            ``test_set``.
        hold_out: one of so many training pairs is held out for validation; 0: none.
        tokenizer: ``moses`` or None; ``normalize``, ``split_hyphens``, ``lowercase``: see ``Tokenizer``.
        source_words: how many words of a source are kept, after the tokeniser; 0: all.
        replace: words and what they become.
        segmentation: one of ``SEGMENTATIONS``.
        size: merges of subword_nmt, pieces of sentencepiece.
        least_count: how often a word or unit must occur in the training text to get into the dictionary.
        character_coverage: see ``train_sentencepiece``; likewise ``sample``.
        filter_by: what ``max_length`` and ``max_ratio`` count: ``words``, ``pieces``, or ``none`` for no filter.
        published_pairs: the published number of training pairs; 0 if unknown.
    """

    name: str
    languages: tuple[str, ...]
    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]
    test: list[tuple[str, str]]
    valid_set: str
    test_set: str
    segmentation: str
    filter_by: str
    reverse: bool = False
    hold_out: int = 0
    tokenizer: str | None = None
    normalize: bool = False
    split_hyphens: bool = False
    lowercase: bool = False
    size: int = 0
    least_count: int = 1
    character_coverage: float = 1.0
    sample: int = 0
    max_length: int = 0
    max_ratio: float = 0.0
    published_pairs: int = 0
    source_words: int = 0
    replace: dict[str, str] = field(default_factory=dict)


class Texts:
    """The files OUT/text/STAGE/NAME.LANGUAGE."""

    def __init__(self, out: Path, settings: Settings, workers: int = 1) -> None:
        self.folder = out / "text"
        self.settings, self.workers = settings, workers
        self.parts = [f"train-{i + 1}" for i in range(len(settings.train))]
        languages = settings.languages[::-1] if settings.reverse else settings.languages
        self.source, self.target = languages[0], languages[-1]
        self.words = "words" if settings.tokenizer or settings.source_words or settings.replace else "raw"
        self.model = self.folder / MODELS[settings.segmentation] if settings.segmentation != "none" else None

    def pair(self, stage: str, name: str) -> list[Path]:
        """The files of all languages, in the order of the settings."""
        return [self.folder / stage / f"{name}.{language}" for language in self.settings.languages]

    def make(self, stage: str, name: str, rows: Iterable[Row]) -> None:
        """Write a pair of files unless it is there."""
        if not all(path.exists() for path in self.pair(stage, name)):
            print(f"prepare: {stage}/{name}", file=sys.stderr)
            write_rows(rows, self.pair(stage, name))

    def rows(self, name: str, *stages: str) -> Iterator[Row]:
        """The lines of a name's files at some stages, side by side."""
        self.count(name, *stages)
        yield from zip(*(lines(path) for stage in stages for path in self.pair(stage, name)), strict=True)

    def count(self, name: str, *stages: str) -> int:
        """Line counts of the files of a name at some stages.

        Raises:
            ValueError: naming two files, if they do not have the same number.
        """
        first, *rest = [path for stage in stages for path in self.pair(stage, name)]
        expected = count_lines(first)
        for path in rest:
            if (count := count_lines(path)) != expected:
                raise ValueError(
                    f"{first} has {expected} lines, {path} has {count}: delete {self.folder} and run again"
                )
        return expected

    def collect(self) -> None:
        """Archives and evaluation sets to ``raw``."""
        settings, scratch = self.settings, self.folder / "unpacked"
        archives = {part: [text] for part, text in zip(self.parts, settings.train, strict=True)}
        archives |= {name: texts for name in SPLITS if (texts := getattr(settings, name))}
        for name, texts in archives.items():
            shutil.rmtree(scratch, ignore_errors=True)
            rows = chain.from_iterable(
                archive_rows(Path(archive), pattern, settings.languages, scratch / str(i))
                for i, (archive, pattern) in enumerate(texts)
            )
            self.make("raw", name, rows if name in SPLITS else filled(rows, name))
        shutil.rmtree(scratch, ignore_errors=True)
        for name in SPLITS:
            if name not in archives and not (name == "valid" and settings.hold_out):
                names = getattr(settings, f"{name}_set")
                self.make("raw", name, evaluation_rows(names, self.source, self.target, settings.languages))

    def tokenize(self, names: Iterable[str]) -> None:
        """From ``raw`` to ``words``, where they differ."""
        settings = self.settings
        if self.words == "raw":
            return
        for language in settings.languages:
            tokenizer = Tokenizer(language, settings.normalize, settings.split_hyphens, settings.lowercase)
            most = settings.source_words if language == self.source else 0
            words = Words(tokenizer if settings.tokenizer else None, settings.replace, most)
            self.map(words, "raw", "words", names, language)

    def segment(self, names: Sequence[str]) -> None:
        """From words to ``pieces``, with units learnt from the words of the names that are training text."""
        settings = self.settings
        if self.model is None:
            for name in names:
                self.make("pieces", name, self.rows(name, self.words))
            return
        if not self.model.exists():
            print(f"prepare: {self.model.name}", file=sys.stderr)
            texts = [path for name in names if name not in SPLITS for path in self.pair(self.words, name)]
            size = (settings.size, settings.character_coverage, settings.sample)
            learn(settings.segmentation, texts, self.model, *size)
        for language in settings.languages:
            self.map(Segmenter(settings.segmentation, self.model), self.words, "pieces", names, language)

    def map(self, function: Callable[[str], str], stage: str, to: str, names: Iterable[str], language: str) -> None:
        for name in names:
            source, target = (self.folder / folder / f"{name}.{language}" for folder in (stage, to))
            if not target.exists():
                print(f"prepare: {to}/{target.name}", file=sys.stderr)
                map_lines(function, source, target, self.workers)

    def filter(self, stage: str) -> None:
        """Join the training parts of a stage without bad pairs (``is_good``); hold some out for validation."""
        settings = self.settings
        outputs, count = [*self.pair(stage, "train")], len(settings.languages)
        if settings.hold_out:
            outputs += [*self.pair(stage, "valid"), *(self.pair("raw", "valid") if stage != "raw" else ())]
        if all(path.exists() for path in outputs):
            return
        print(f"prepare: {stage}/train", file=sys.stderr)
        with writing(*outputs) as files:
            kept, limits = 0, (settings.max_length, settings.max_ratio)
            for part in self.parts:
                for texts in self.rows(part, stage, "raw"):
                    if settings.filter_by == "none" or is_good(texts[0], texts[count - 1], *limits):
                        kept += 1
                        held_out = settings.hold_out and kept % settings.hold_out == 0
                        into = files[count:] if held_out else files[:count]
                        for text, file in zip(texts[: len(into)], into, strict=True):
                            file.write(text + "\n")

    def run(self) -> None:
        """All stages from archives to pieces."""
        for stage in ("raw", "words", "pieces"):
            (self.folder / stage).mkdir(parents=True, exist_ok=True)
        self.collect()
        evaluation = ["test"] if self.settings.hold_out else [*SPLITS]
        self.tokenize([*self.parts, *evaluation])
        if self.settings.filter_by == "words":
            self.filter(self.words)
            self.segment(["train", *SPLITS])
        else:
            self.segment([*self.parts, *evaluation])
            self.filter("pieces")

    def manifest(self) -> dict[str, Any]:
        """The numbers of lines of all stages; it is an error if two sides differ."""
        collected = {part: self.count(part, "raw") for part in self.parts}
        binarised = {name: self.count(name, "pieces") for name in ("train", *SPLITS)}
        for name in SPLITS:
            if (raw := self.count(name, "raw")) != binarised[name]:
                raise ValueError(f"{name}: {raw} raw lines, {binarised[name]} lines of pieces")
        pairs = {"collected": collected, "collected in all": sum(collected.values()), "binarised": binarised}
        if self.settings.published_pairs:
            pairs["published"] = self.settings.published_pairs
        return pairs
