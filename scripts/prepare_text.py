"""The text steps of scripts/prepare_*.sh; scripts/prepare_steps.sh calls them.

    python scripts/prepare_text.py text OUT --languages en de --train ARCHIVE 'europarl.{}' --valid-set wmt13 …
    python scripts/prepare_text.py finish OUT

``text`` reads the archives and the evaluation sets and writes OUT/text: ``raw``, ``words`` (tokenised), ``pieces``
(what fairseq-preprocess reads) and the model of the subword units. ``finish`` checks the folder that fairseq-preprocess
made, adds the raw evaluation sets, the subword model and text.json, and renames it to OUT/data-bin; OUT/manifest.json
says what was done. A file has its name only once it is whole; whole files are not made again.
"""

import argparse
import gzip
import json
import multiprocessing
import re
import shutil
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.metadata import version
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, TextIO
from xml.etree import ElementTree

import encode_text
import sacremoses
import sentencepiece
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

Row = tuple[str, str]
SEGMENTATIONS = ("subword_nmt", "sentencepiece", "none")
#: The names that fairseq's ``from_pretrained`` looks for.
MODELS = {"subword_nmt": "bpecodes", "sentencepiece": encode_text.MODEL}
EVALUATION = ("valid", "test")
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


@contextmanager
def writing(*paths: Path) -> Iterator[list[TextIO]]:
    """Open text files under temporary names; all get their own when the block has ended without an error."""
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
        for line in file:
            yield line.rstrip("\r\n")


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


def aligned(archive: Path, first: Path, second: Path) -> Iterator[Row]:
    """The sentences of two files side by side; it is an error if one has more of them."""
    counts = [0, 0]
    for row in zip_longest(sentences(first), sentences(second)):
        counts = [count + (text is not None) for count, text in zip(counts, row, strict=True)]
        if None not in row:
            yield row
    if counts[0] != counts[1]:
        raise ValueError(f"{archive}: {first.name} has {counts[0]} sentences, {second.name} has {counts[1]}")


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


def archive_rows(archive: Path, pattern: str, languages: Sequence[str], scratch: Path) -> Iterator[Row]:
    """All pairs of an archive, white space made single spaces; pairs with an empty side are left out.

    Args:
        archive: .tmx.gz, .zip, .tar, .tgz, or a folder of text files that may be compressed.
        pattern: which of its files, ``{}`` for the language; where they are not alike, two patterns with ``|`` between.
        languages: both.
        scratch: a folder to unpack to.
    """
    if archive.name.endswith(".tmx.gz"):
        rows = translation_memory(archive, languages)
    else:
        patterns = pattern.split("|") if "|" in pattern else [pattern.replace("{}", language) for language in languages]
        pairs = zip(*find(archive, patterns, scratch), strict=True)
        rows = chain.from_iterable(aligned(archive, *pair) for pair in pairs)
    for first, second in rows:
        if first and second:
            yield " ".join(first.split()), " ".join(second.split())


def evaluation_rows(names: str, source: str, target: str, languages: Sequence[str]) -> Iterator[Row]:
    """Sources and first references of sacreBLEU's test sets, ``+`` between their names, in the order of languages."""
    from sacrebleu.dataset import DATASETS

    for name in names.split("+"):
        if name not in DATASETS:
            raise ValueError(f"evaluation set '{name}': choose one of {', '.join(sorted(DATASETS))}")
        dataset, pair = DATASETS[name], f"{source}-{target}"
        if pair not in dataset.langpairs:
            raise ValueError(f"evaluation set '{name}' has no {pair}; it has {', '.join(sorted(dataset.langpairs))}")
        for text, references in zip(dataset.source(pair), dataset.references(pair), strict=True):
            row = {source: " ".join(text.split()), target: " ".join(references[0].split())}
            yield row[languages[0]], row[languages[1]]


@lru_cache
def moses(language: str) -> tuple[sacremoses.MosesPunctNormalizer, sacremoses.MosesTokenizer]:
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


@lru_cache
def segmenter(segmentation: str, model: Path) -> Callable[[str], str]:
    if segmentation == "sentencepiece":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        return lambda line: " ".join(processor.encode(line, out_type=str))
    with open(model, encoding="utf-8") as codes:
        process: Callable[[str], str] = BPE(codes).process_line
    return process


@dataclass(frozen=True)
class Segmenter:
    """Cuts the words of a line into the units of a model."""

    segmentation: str
    model: Path

    def __call__(self, line: str) -> str:
        return segmenter(self.segmentation, self.model)(line)


def learn(segmentation: str, texts: Sequence[Path], model: Path, size: int, coverage: float, sample: int) -> None:
    """Learn subword units from all texts together; see ``encode_text.train_model`` for the arguments."""
    if segmentation == "subword_nmt":
        with writing(model) as (codes,):
            learn_bpe(chain.from_iterable(map(lines, texts)), codes, size)
    else:
        folder = model.with_name("learning")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        encode_text.train_model(texts, folder / model.name, size, coverage, sample)
        (folder / model.name).replace(model)
        shutil.rmtree(folder)


def map_lines(function: Callable[[str], str], source: Path, target: Path, workers: int) -> None:
    """Write the function's value of every line of a file."""
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


class Texts:
    """The files OUT/text/STAGE/NAME.LANGUAGE."""

    def __init__(self, out: Path, settings: argparse.Namespace) -> None:
        self.folder = out / "text"
        self.settings = settings
        self.parts = [f"train-{i + 1}" for i in range(len(settings.train))]
        self.source, self.target = reversed(settings.languages) if settings.reverse else settings.languages
        self.words = "words" if settings.tokenizer else "raw"
        self.model = self.folder / MODELS[settings.segmentation] if settings.segmentation != "none" else None

    def pair(self, stage: str, name: str) -> list[Path]:
        """Both languages, in the order of the settings."""
        return [self.folder / stage / f"{name}.{language}" for language in self.settings.languages]

    def make(self, stage: str, name: str, rows: Iterable[Row]) -> None:
        """Write a pair of files unless it is there."""
        if not all(path.exists() for path in self.pair(stage, name)):
            print(f"prepare_text: {stage}/{name}", file=sys.stderr)
            write_rows(rows, self.pair(stage, name))

    def rows(self, stage: str, name: str) -> Iterator[Row]:
        yield from zip(*map(lines, self.pair(stage, name)), strict=True)

    def count(self, stage: str, name: str) -> int:
        counts = [count_lines(path) for path in self.pair(stage, name)]
        if counts[0] != counts[1]:
            raise ValueError(f"{self.pair(stage, name)[0]} has {counts[0]} lines, the other side has {counts[1]}")
        return counts[0]

    def collect(self) -> None:
        """Archives and evaluation sets to ``raw``."""
        settings, scratch = self.settings, self.folder / "unpacked"
        archives = {part: [text] for part, text in zip(self.parts, settings.train, strict=True)}
        archives |= {name: texts for name in EVALUATION if (texts := getattr(settings, name))}
        for name, texts in archives.items():
            shutil.rmtree(scratch, ignore_errors=True)
            self.make(
                *("raw", name),
                chain.from_iterable(
                    archive_rows(Path(archive), pattern, settings.languages, scratch / str(i))
                    for i, (archive, pattern) in enumerate(texts)
                ),
            )
        shutil.rmtree(scratch, ignore_errors=True)
        for name in EVALUATION:
            if name not in archives and not (name == "valid" and settings.hold_out):
                names = getattr(settings, f"{name}_set")
                self.make("raw", name, evaluation_rows(names, self.source, self.target, settings.languages))

    def tokenize(self, names: Iterable[str]) -> None:
        """From ``raw`` to ``words``."""
        settings = self.settings
        if settings.tokenizer:
            for language in settings.languages:
                tokenizer = Tokenizer(language, settings.normalize, settings.split_hyphens, settings.lowercase)
                self.map(tokenizer, "raw", "words", names, language)

    def segment(self, names: Sequence[str]) -> None:
        """From words to ``pieces``, with units learnt from the words of the names that are training text."""
        settings = self.settings
        if self.model is None:
            for name in names:
                self.make("pieces", name, self.rows(self.words, name))
            return
        if not self.model.exists():
            print(f"prepare_text: {self.model.name}", file=sys.stderr)
            texts = [path for name in names if name not in EVALUATION for path in self.pair(self.words, name)]
            size = (settings.size, settings.character_coverage, settings.sample)
            learn(settings.segmentation, texts, self.model, *size)
        for language in settings.languages:
            self.map(Segmenter(settings.segmentation, self.model), self.words, "pieces", names, language)

    def map(self, function: Callable[[str], str], stage: str, to: str, names: Iterable[str], language: str) -> None:
        for name in names:
            source, target = (self.folder / folder / f"{name}.{language}" for folder in (stage, to))
            if not target.exists():
                print(f"prepare_text: {to}/{target.name}", file=sys.stderr)
                map_lines(function, source, target, self.settings.workers)

    def filter(self, stage: str) -> None:
        """Joins the training parts of a stage, without what is too long; some pairs are held out for validation."""
        settings = self.settings
        outputs = [*self.pair(stage, "train")]
        if settings.hold_out:
            outputs += [*self.pair(stage, "valid"), *self.pair("raw", "valid")]
        if all(path.exists() for path in outputs):
            return
        print(f"prepare_text: {stage}/train", file=sys.stderr)
        with writing(*outputs) as files:
            kept = 0
            for part in self.parts:
                for row, raw in zip(self.rows(stage, part), self.rows("raw", part), strict=True):
                    if settings.filter_by == "none" or is_good(*row, settings.max_length, settings.max_ratio):
                        kept += 1
                        held_out = settings.hold_out and kept % settings.hold_out == 0
                        texts, into = ((*row, *raw), files[2:]) if held_out else (row, files[:2])
                        for text, file in zip(texts, into, strict=True):
                            file.write(text + "\n")

    def run(self) -> None:
        """All steps from archives to pieces."""
        for stage in ("raw", "words", "pieces"):
            (self.folder / stage).mkdir(parents=True, exist_ok=True)
        self.collect()
        evaluation = ["test"] if self.settings.hold_out else [*EVALUATION]
        self.tokenize([*self.parts, *evaluation])
        if self.settings.filter_by == "words":
            self.filter(self.words)
            self.segment(["train", *EVALUATION])
        else:
            self.segment([*self.parts, *evaluation])
            self.filter("pieces")

    def manifest(self) -> dict[str, Any]:
        """Line counts of all steps; sides that do not have the same are an error."""
        collected = {part: self.count("raw", part) for part in self.parts}
        binarised = {name: self.count("pieces", name) for name in ("train", *EVALUATION)}
        for name in EVALUATION:
            if self.count("raw", name) != binarised[name]:
                raise ValueError(f"{name}: {self.count('raw', name)} raw lines, {binarised[name]} lines of pieces")
        pairs = {"collected": collected, "collected in all": sum(collected.values()), "binarised": binarised}
        if self.settings.published_pairs:
            pairs["published"] = self.settings.published_pairs
        return pairs


def binarised_sentences(index: Path) -> int:
    """How many sentences a .idx file of fairseq-preprocess has: magic (9 bytes), version (8), type (1), count (8)."""
    with open(index, "rb") as file:
        (count,) = struct.unpack("<Q", file.read(26)[18:])
    return int(count)


def same_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a run, or check that they are those of the run that began in this folder."""
    if not path.exists():
        with writing(path) as (file,):
            json.dump(settings, file, indent=1)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if before.get(name) != value:
            raise ValueError(
                f"{path.parent} was begun with {name} {before.get(name)!r}, not {value!r}: give the same option or "
                "choose another folder"
            )


def finish(out: Path, binary: Path, downloads: Sequence[Sequence[str]]) -> None:
    """Check and complete the folder of fairseq-preprocess, write the manifest and rename the folder to OUT/data-bin."""
    settings = argparse.Namespace(**json.loads((out / "settings.json").read_text(encoding="utf-8")))
    texts = Texts(out, settings)
    pairs = texts.manifest()
    for name, count in pairs["binarised"].items():
        for language in settings.languages:
            found = binarised_sentences(binary / f"{name}.{texts.source}-{texts.target}.{language}.idx")
            if found != count:
                raise ValueError(f"{binary}: {found} sentences of {name}.{language}, there are {count} in the text")
    (binary / "raw").mkdir(exist_ok=True)
    for name in EVALUATION:
        for path in texts.pair("raw", name):
            with writing(binary / "raw" / path.name) as (file,):
                file.writelines((line.lower() if settings.lowercase else line) + "\n" for line in lines(path))
    if texts.model is not None:
        shutil.copy(texts.model, binary)
    description = {
        "languages": [texts.source, texts.target],
        "post_process": None if texts.model is None else settings.segmentation,
        "tokenizer": settings.tokenizer,
        "valid_set": settings.valid_set,
        "test_set": settings.test_set,
    }
    sums = (out / "downloads/SHA256SUMS").read_text(encoding="utf-8") if downloads else ""
    checksums = {name: checksum for checksum, name in (line.split() for line in sums.splitlines())}
    manifest = {
        "settings": vars(settings),
        "downloads": [
            {"name": name, "url": url, "sha256": checksums[name], "checksum is": kind,
             "bytes": (out / "downloads" / name).stat().st_size}
            for name, url, kind in downloads
        ],
        "pairs": pairs,
        "versions": {name: version(name) for name in ("fairseq-fixed", "sacrebleu", "sacremoses", "sentencepiece",
                                                      "subword-nmt")},
    }  # fmt: skip
    for path, content in ((binary / "text.json", description), (out / "manifest.json", manifest)):
        with writing(path) as (file,):
            json.dump(content, file, indent=1)
            file.write("\n")
    binary.replace(out / "data-bin")
    print(f"{pairs['collected in all']} pairs, {pairs['binarised']} after the filter; see {out}/manifest.json")
    if "published" in pairs and pairs["published"] != pairs["collected in all"]:
        print(f"prepare_text: {pairs['collected in all']} pairs collected, {pairs['published']} are published",
              file=sys.stderr)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    text = commands.add_parser("text")
    add = text.add_argument
    add("--name", required=True, help="of the data set")
    add("--languages", nargs=2, required=True, help="in the order of patterns with '|'; source and target")
    add("--reverse", action="store_true", help="the second language is the source")
    for role in ("train", *EVALUATION):
        add(f"--{role}", nargs=2, action="append", default=[], metavar=("ARCHIVE", "PATTERN"), help="see archive_rows")
    for role in EVALUATION:
        add(f"--{role}-set", required=True, help="what it is called; without archives for it, sacreBLEU's names")
    add("--hold-out", type=int, default=0, help="every so many training pairs, one is for validation")
    add("--tokenizer", choices=["moses"])
    for name in ("normalize", "split-hyphens", "lowercase"):
        add(f"--{name}", action="store_true", help="see Tokenizer")
    add("--segmentation", choices=SEGMENTATIONS, required=True)
    add("--size", type=int, default=0, help="merges of subword_nmt, pieces of sentencepiece")
    add("--character-coverage", type=float, default=1.0)
    add("--sample", type=int, default=0, help="sentences to learn pieces from")
    add("--filter-by", choices=["words", "pieces", "none"], required=True, help="what max-length and max-ratio count")
    add("--max-length", type=int, default=0)
    add("--max-ratio", type=float, default=0.0)
    add("--published-pairs", type=int, default=0, help="how many training pairs others have counted")
    add("--workers", type=int, default=1)
    end = commands.add_parser("finish")
    end.add_argument("--binary", type=Path, required=True, help="folder of fairseq-preprocess")
    end.add_argument("--download", nargs=3, action="append", default=[], metavar=("NAME", "URL", "published|recorded"))
    for command in (text, end):
        command.add_argument("out", type=Path, help="folder to write to")
    args = parser.parse_args()
    try:
        if args.command == "finish":
            finish(args.out, args.binary, args.download)
        else:
            if args.hold_out and args.filter_by != "words":
                raise ValueError(f"--hold-out {args.hold_out} needs --filter-by words, not '{args.filter_by}'")
            args.out.mkdir(parents=True, exist_ok=True)
            settings = {name: value for name, value in vars(args).items() if name not in ("command", "out", "workers")}
            for role in ("train", *EVALUATION):
                settings[role] = [[Path(archive).name, pattern] for archive, pattern in settings[role]]
            same_settings(args.out / "settings.json", settings)
            Texts(args.out, args).run()
    except ValueError as error:
        sys.exit(f"prepare_text: {error}")


if __name__ == "__main__":
    main()
