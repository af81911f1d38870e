"""The text of a corpus: from archives to the pieces that fairseq-preprocess reads.

OUT/text has the stages ``raw``, ``words`` (tokenised) and ``pieces``, and the model of the subword units. A file gets
its name when it is complete; complete files are not made again.
"""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from io import StringIO
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, TextIO
from xml.etree import ElementTree

import sentencepiece
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

#: A sentence in every language of the corpus: a pair, or one sentence for language models.
Row = tuple[str, ...]
SEGMENTATIONS = ("subword_nmt", "sentencepiece", "none")
#: The names that fairseq's ``from_pretrained`` looks for.
MODELS = {"subword_nmt": "bpecodes", "sentencepiece": "sentencepiece.bpe.model"}
#: The parts of the data that are decoded and scored.
SPLITS = ("valid", "test")
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")
STORIES = "_stories.tgz"
HIGHLIGHT = "@highlight"
#: What ends a line of a story (See et al. 2017); others get a full stop.
CLOSED = (*".!?'`\")", "\N{RIGHT SINGLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}")
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


@contextmanager
def writing(*paths: Path) -> Iterator[list[TextIO]]:
    """Open text files under temporary names; all get their own names if the block ends without an error."""
    parts = [path.with_name(path.name + ".part") for path in paths]
    with ExitStack() as stack:
        yield [stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")) for part in parts]
    for part, path in zip(parts, paths, strict=True):
        part.replace(path)


def write_rows(rows: Iterable[Row], paths: Sequence[Path]) -> None:
    """Write one file for each language."""
    with writing(*paths) as files:
        for row in rows:
            for text, file in zip(row, files, strict=True):
                file.write(text + "\n")


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, which may be compressed; only a newline ends a line."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        try:
            for line in file:
                yield line.rstrip("\r\n")
        except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
            raise ValueError(f"{path}: {error}") from None


def count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def sentences(path: Path) -> Iterator[str]:
    """The sentences of a file of an archive: plain text, WIT3's tagged training text, or <seg> elements."""
    if path.suffix in (".xml", ".sgm"):
        for line in lines(path):
            for text in re.findall(r"<seg[^>]*>(.*?)</seg>", line):
                yield text.strip().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    elif path.name.startswith("train.tags."):
        for line in lines(path):
            if not re.search("<(url|talkid|keywords)>", line):
                yield re.sub("</?(title|description)>", "", line)
    else:
        yield from lines(path)


def aligned(archive: Path, *files: Path) -> Iterator[Row]:
    """The sentences of files side by side; different numbers of sentences are an error."""
    counts = [0] * len(files)
    for row in zip_longest(*map(sentences, files)):
        counts = [count + (text is not None) for count, text in zip(counts, row, strict=True)]
        if None not in row:
            yield row
    if len({*counts}) > 1:
        found = (f"{file.name} has {count}" for file, count in zip(files, counts, strict=True))
        raise ValueError(f"{archive}: {' sentences, '.join(found)}")


def translation_memory(archive: Path, languages: Sequence[str]) -> Iterator[Row]:
    """The pairs of a compressed TMX file."""
    with gzip.open(archive) as file:
        for _, unit in ElementTree.iterparse(file):
            if unit.tag == "tu":
                variants = {variant.get(XML_LANG, variant.get("lang")): variant for variant in unit.iterfind("tuv")}
                if missing := [language for language in languages if language not in variants]:
                    raise ValueError(f"{archive}: a pair has no {missing[0]}; it has {sorted(map(str, variants))}")
                first, second = (variants[language].findtext("seg", "") for language in languages)
                yield first, second
                unit.clear()


def stories(archive: Path, addresses: Path) -> Iterator[Row]:
    """Articles and summaries of CNN or Daily Mail, in the order of the archive.

    Args:
        archive: of files ``<SHA-1 of the article's address>.story``.
        addresses: a file with one address a line: the articles that are wanted, which need not all be in this archive.
    """
    wanted = {hashlib.sha1(address.strip().encode()).hexdigest() for address in lines(addresses)}
    for name, content in members(archive):
        if Path(name).suffix == ".story" and Path(name).stem in wanted:
            yield story(content.read().decode("utf-8"))


def story(text: str) -> Row:
    """The article and the summary of a story: its lines before the first ``@highlight``, and those behind one."""
    found = [line.strip() for line in text.split("\n")]
    closed = [line if line.startswith(HIGHLIGHT) or line.endswith(CLOSED) else f"{line} ." for line in found if line]
    begin = next((number for number, line in enumerate(closed) if line.startswith(HIGHLIGHT)), len(closed))
    return " ".join(closed[:begin]), " ".join(line for line in closed[begin:] if not line.startswith(HIGHLIGHT))


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every file in a zip or tar archive, in one pass."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                if not name.endswith("/"):
                    with zipped.open(name) as unzipped:
                        yield name, unzipped
    else:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                if member.isfile() and (content := tar.extractfile(member)) is not None:
                    yield member.name, content


def find(archive: Path, patterns: Sequence[str], scratch: Path) -> list[list[Path]]:
    """The files that match each pattern, sorted by name; those of an archive are written to the scratch folder."""
    found: list[list[Path]] = [[] for _ in patterns]
    names = []
    if archive.is_dir():
        names = sorted(path.name for path in archive.iterdir())
        for pattern, files in zip(patterns, found, strict=True):
            files += [path for path in (archive / pattern, archive / f"{pattern}.gz") if path.is_file()][:1]
    else:
        for name, content in members(archive):
            names.append(name)
            for i, pattern in enumerate(patterns):
                if fnmatchcase(name, pattern):
                    path = scratch / str(i) / Path(name).name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with open(path, "xb") as file:
                        shutil.copyfileobj(content, file)
                    found[i].append(path)
                    break
    for pattern, files in zip(patterns, found, strict=True):
        if len(files) != len(found[0]) or not files:
            raise ValueError(
                f"{archive}: {len(files)} of its files match '{pattern}', {len(found[0])} match '{patterns[0]}'; "
                f"it holds {', '.join(names[:20])}"
            )
    return [sorted(files) for files in found]


def both_sides(pattern: str, languages: Sequence[str]) -> list[str]:
    """A pattern for each language, see ``archive_rows``."""
    return pattern.split("|") if "|" in pattern else [pattern.replace("{}", language) for language in languages]


def archive_rows(archive: Path, pattern: str, languages: Sequence[str], scratch: Path) -> Iterator[Row]:
    """All rows of an archive, white space made single spaces.

    Args:
        archive: .tmx.gz, .zip, .tar, .tgz, or a folder of text files that may be compressed; or one text file; or
            ``…_stories.tgz``.
        pattern: which of its files, ``{}`` for the language; if they are not alike, two patterns joined by ``|``; for a
            text file, the file of the other language, or nothing if there is none; for stories, the file of their
            addresses.
        languages: both, or the only one.
        scratch: a folder to unpack to.
    """
    if archive.name.endswith(".tmx.gz"):
        rows = translation_memory(archive, languages)
    elif archive.name.endswith(STORIES):
        rows = stories(archive, Path(pattern))
    elif archive.is_file() and not archive.name.endswith(ARCHIVES):
        rows = aligned(archive, archive, *([Path(pattern)] if pattern else []))
    else:
        pairs = zip(*find(archive, both_sides(pattern, languages), scratch), strict=True)
        rows = chain.from_iterable(aligned(archive, *pair) for pair in pairs)
    for row in rows:
        yield tuple(" ".join(text.split()) for text in row)


def filled(rows: Iterable[Row], name: str) -> Iterator[Row]:
    """Rows without those of which a side is empty; at the end says how many these were."""
    count = 0
    for row in rows:
        if all(row):
            yield row
        else:
            count += 1
    if count:
        print(f"prepare: {name}: {count} left out, of which a side is empty", file=sys.stderr)


def evaluation_sets(names: str, pair: str) -> list[Any]:
    """sacreBLEU's test sets, ``+`` between their names, for a pair such as ``en-de``.

    Raises:
        ValueError: for those that there are not.
    """
    from sacrebleu.dataset import DATASETS

    for name in names.split("+"):
        if name not in DATASETS:
            raise ValueError(f"evaluation set '{name}': choose one of {', '.join(sorted(DATASETS))}")
        if pair not in (pairs := DATASETS[name].langpairs):
            raise ValueError(f"evaluation set '{name}' has no {pair}; it has {', '.join(sorted(pairs))}")
    return [DATASETS[name] for name in names.split("+")]


def evaluation_rows(names: str, source: str, target: str, languages: Sequence[str]) -> Iterator[Row]:
    """Sources and first references of test sets, see ``evaluation_sets``, in the order of languages."""
    pair = f"{source}-{target}"
    for dataset in evaluation_sets(names, pair):
        try:
            texts, references = dataset.source(pair), dataset.references(pair)  # which may download them
        except OSError as error:
            here = "put it into the folder that SACREBLEU names (~/.sacrebleu)"
            raise ValueError(f"evaluation set '{dataset.name}' cannot be had ({error}): {here}") from None
        for text, several in zip(texts, references, strict=True):
            row = {source: " ".join(text.split()), target: " ".join(several[0].split())}
            yield row[languages[0]], row[languages[1]]


@lru_cache
def moses(language: str) -> tuple[Any, Any]:
    """The normaliser of punctuation and the tokeniser."""
    import sacremoses  # which takes half a second

    normalizer = sacremoses.MosesPunctNormalizer(language, post_remove_control_chars=True, perl_parity=True)
    return normalizer, sacremoses.MosesTokenizer(language)


@dataclass(frozen=True)
class Tokenizer:
    """Moses' tokenisation of a line.

    Args:
        language: whose abbreviations and apostrophes.
        normalize: normalise punctuation and remove control characters first.
        split_hyphens: ``-`` between letters or digits becomes a word, ``@-@``.
        lowercase: lower-case the result.
    """

    language: str
    normalize: bool
    split_hyphens: bool
    lowercase: bool

    def __call__(self, line: str) -> str:
        normalizer, tokenizer = moses(self.language)
        text = normalizer.normalize(line) if self.normalize else line
        text = tokenizer.tokenize(text, aggressive_dash_splits=self.split_hyphens, return_str=True)
        return text.lower() if self.lowercase else text


@dataclass(frozen=True)
class Words:
    """The words of a line.

    Args:
        tokenizer: None for text whose words stand between spaces.
        replace: words and what they become.
        most: how many are kept; 0: all.
    """

    tokenizer: Tokenizer | None
    replace: dict[str, str]
    most: int

    def __call__(self, line: str) -> str:
        words = (self.tokenizer(line) if self.tokenizer else line).split(" ")
        return " ".join(self.replace.get(word, word) for word in words[: self.most or None])


def segmenter(segmentation: str, model: Path) -> Callable[[str], str]:
    """What segments the words of a line into the units of a model, which is read now.

    Raises:
        ValueError: if the file is damaged.
    """
    if segmentation == "sentencepiece":
        try:
            return partial(_pieces, sentencepiece.SentencePieceProcessor(model_file=str(model)))
        except RuntimeError as error:
            raise ValueError(f"{model} is damaged: {error}") from None
    said = StringIO()
    try:
        with open(model, encoding="utf-8") as codes, redirect_stderr(said):
            process: Callable[[str], str] = BPE(codes).process_line
    except (SystemExit, ValueError) as error:  # it prints what is wrong, and exits
        raise ValueError(f"{model} is damaged: {(said.getvalue() or str(error)).splitlines()[0]}") from None
    return process


def _pieces(processor: sentencepiece.SentencePieceProcessor, line: str) -> str:
    return " ".join(processor.encode(line, out_type=str))


_segmenter_of_process = lru_cache(segmenter)


@dataclass(frozen=True)
class Segmenter:
    """Segments the words of a line into the units of a model, which each process of a pool reads once."""

    segmentation: str
    model: Path

    def __call__(self, line: str) -> str:
        return _segmenter_of_process(self.segmentation, self.model)(line)


def train_sentencepiece(
    texts: Sequence[Path], model: Path, vocab_size: int, character_coverage: float = 1.0, sentences: int = 0
) -> None:
    """Train a BPE model of sentencepiece on all texts together.

    Args:
        texts: files with one sentence per line.
        model: where to write; the vocabulary goes to the same name with the suffix ``.vocab``.
        vocab_size: how many pieces.
        character_coverage: the share of characters that get a piece of their own.
        sentences: learn from a random sample of this size, always the same; 0: from all.

    Raises:
        ValueError: if there is too little text for so many pieces.
    """
    sentencepiece.set_random_generator_seed(1)
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(text) for text in texts],
            model_prefix=str(model.with_suffix("")),
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=character_coverage,
            input_sentence_size=sentences,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).split(" or decrease character_coverage")[0]  # which prepare has no option for
        fails = f"{vocab_size} pieces cannot be learnt from {texts[0].parent}"
        raise ValueError(f"--vocab-size: {fails}: {reason}") from None


def learn(segmentation: str, texts: Sequence[Path], model: Path, size: int, coverage: float, sample: int) -> None:
    """Learn subword units from all texts together; see ``train_sentencepiece`` for the arguments.

    Raises:
        ValueError: if there is no text, or too little for so many units.
    """
    if not any(line.strip() for line in chain.from_iterable(map(lines, texts))):
        raise ValueError(f"{texts[0]}: nothing is left of the training text; give other text and another folder")
    if segmentation == "subword_nmt":
        with writing(model) as (codes,):
            learn_bpe(chain.from_iterable(map(lines, texts)), codes, size)
    else:
        folder = model.with_name("learning")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        train_sentencepiece(texts, folder / model.name, size, coverage, sample)
        (folder / model.name).replace(model)
        shutil.rmtree(folder)


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


def is_good(first: str, second: str, max_length: int, max_ratio: float) -> bool:
    """Whether both sides have 1 to ``max_length`` words and neither ``max_ratio`` times as many as the other."""
    lengths = sorted(len(text.split()) for text in (first, second))
    return lengths[0] >= 1 and lengths[1] <= min(max_length, max_ratio * lengths[0])


@dataclass(frozen=True)
class Settings:
    """How a corpus is prepared.

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
        """How many lines the files of a name have at some stages.

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
