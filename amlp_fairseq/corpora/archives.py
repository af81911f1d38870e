"""Sentences from what corpora are distributed as: archives, TMX, tagged text, stories, sacreBLEU's test sets."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

from amlp_fairseq.common.lines import lines

#: A sentence in every language of the corpus: a pair, or one sentence for language models.
Row = tuple[str, ...]
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")
STORIES = "_stories.tgz"
HIGHLIGHT = "@highlight"
#: Punctuation that ends a line of a story (See et al. 2017); others get a full stop.
CLOSED = (*".!?'`\")", "\N{RIGHT SINGLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}")
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


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
    """The article and the summary of a story: its lines before the first ``@highlight``, and those after each."""
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
