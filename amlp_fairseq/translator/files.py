"""Lines of a file, or of standard input, translated."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

from amlp_fairseq.common.lines import buffered_read, lines, read_lines, refuse_closed_input
from amlp_fairseq.common.logs import above_the_bar
from amlp_fairseq.text import sentences
from amlp_fairseq.text.documents import Document
from amlp_fairseq.text.inline import KEEP
from amlp_fairseq.translator.texts import EmptyText
from amlp_fairseq.translator.translator import Translation, Translator

#: First bytes of compressed files, and the programs that unpack them.
COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


@dataclass(frozen=True)
class Beside:
    """Input beside the texts.

    Attributes:
        prefixes, suffixes: files with what the translation of each line must begin and end with.
        jsonl: a line is a JSON object with a ``text``, and perhaps a ``prefix`` and a ``suffix``.
    """

    prefixes: Path | None = None
    suffixes: Path | None = None
    jsonl: bool = False

    def texts(self, batches: Iterator[list[str]]) -> Iterator[tuple[list[str], list[str] | None, list[str] | None]]:
        """Batches of lines as texts, prefixes and suffixes; None where nothing is given.

        Raises:
            ValueError: for a file with another number of lines, and a line that is not such an object; names it.
        """
        files = [None if path is None else (path, lines(path)) for path in (self.prefixes, self.suffixes)]
        number = 0
        for batch in batches:
            if self.jsonl:
                found = [_text_of(line, number + index) for index, line in enumerate(batch, 1)]
                texts, *given = map(list, zip(*found, strict=True))
                prefixes, suffixes = (each if any(each) else None for each in given)
            else:
                texts = batch
                prefixes, suffixes = (None if file is None else [*islice(file[1], len(texts))] for file in files)
            number += len(texts)
            for file, of_texts in zip(files, (prefixes, suffixes), strict=True):
                if file is not None and of_texts is not None and len(of_texts) < len(texts):
                    first = number - len(texts) + len(of_texts) + 1
                    raise ValueError(f"{file[0]} has fewer lines than the text: line {first} has none")
            yield texts, prefixes, suffixes
        for file in files:
            if file is not None and next(file[1], None) is not None:
                raise ValueError(f"{file[0]} has more lines than the text, which has {number}")


def _text_of(line: str, number: int) -> tuple[str, str, str]:
    """Text, prefix and suffix of a line of JSON."""
    try:
        fields = json.loads(line)
        known = {"text", "prefix", "suffix"}
        if not (isinstance(fields, dict) and "text" in fields and fields.keys() <= known):
            raise ValueError(f"an object with 'text', and perhaps 'prefix' and 'suffix', is needed, not {line[:80]}")
        result = [fields.get(name, "") for name in ("text", "prefix", "suffix")]
        if not all(isinstance(each, str) for each in result):
            raise ValueError("'text', 'prefix' and 'suffix' are strings")
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    return result[0], result[1], result[2]


def translated(
    translator: Translator, source: Path | None, buffer: int, beside: Beside = Beside()
) -> Iterator[tuple[str, Translation]]:
    """The lines of a file, or of standard input, with their translations.

    Raises:
        ValueError: for a compressed file, and a line that is too long, naming it.
    """
    refuse_compressed(source)
    terminal = source is None and sys.stdin.isatty()
    before = 0
    with _bar(sys.stderr.isatty() and not terminal) as update:
        batches = buffered_read(str(source or "-"), 1 if terminal else buffer)
        for texts, prefixes, suffixes in beside.texts(batches):
            try:
                found = translator.translations(texts, target_prefixes=prefixes, target_suffixes=suffixes)
                yield from zip(texts, found, strict=True)
            except sentences.TooLong as error:
                raise ValueError(f"line {before + error.number}: {error}") from None
            except EmptyText as error:
                raise EmptyText("line", before + error.number, error.given) from None
            before += len(texts)
            update(len(texts))


def translated_document(
    translator: Translator, source: Path | None, buffer: int, format: str, keep: Sequence[str]
) -> Iterator[str]:
    """A file, or standard input, as a document, translated: its parts, of plain text about ``buffer`` segments each.

    Raises:
        ValueError: for a compressed file, another format, and a text that is not of it.
    """
    refuse_compressed(source)
    parts, count = list[Document](), 0
    with _bar(sys.stderr.isatty() and source is not None) as update:
        text = read_lines(str(source or "-"))
        for document in chain(Document.stream(text, format, (*KEEP, *keep)), [None]):
            if document is not None:
                parts.append(document)
                count += 1 + len(document.segments)
            if document is None or count >= buffer:
                yield "".join(translator.translate_documents(parts))
                update(count)
                parts, count = [], 0


@contextmanager
def _bar(shown: bool) -> Iterator[Callable[[int], object]]:
    """A bar of progress, if it is shown; gives what counts lines."""
    if not shown:
        yield lambda lines: None
        return
    from tqdm import tqdm

    with tqdm(unit=" lines") as progress:
        yield progress.update


def as_json(line: str, translation: Translation) -> str:
    return json.dumps({"source": line, **asdict(translation)}, ensure_ascii=False)


def about_cuts(translator: Translator) -> str:
    """Description of a sentence with a cut."""
    what = "cut between words" if translator.long == "split" else "not read to its end"
    return f"a sentence of more than {translator.max_length} pieces (--max-length), which was {what}"


def say(text: str) -> None:
    """Print a line to standard error, above a bar of progress."""
    with above_the_bar():
        print(f"amlp-fairseq translate: {text}", file=sys.stderr, flush=True)


def check_files(source: Path | None, output: Path | None) -> None:
    """Look at the files before the output is opened, which empties it. None is standard input or output.

    Raises:
        ValueError: where there is no input, it is compressed, or the output is the same file, by whatever name.
    """
    if source is None:
        refuse_closed_input()
    refuse_compressed(source)
    read = os.fstat(0) if source is None else source.stat()
    if output is not None and not output.exists():
        return
    written = os.fstat(1) if output is None else output.stat()
    if stat.S_ISREG(written.st_mode) and os.path.samestat(read, written):  # a terminal may well be both
        name = "standard output" if output is None else f"--output {output}"
        raise ValueError(f"{name} is the text that is to be translated: name another file")


def refuse_compressed(source: Path | None) -> None:
    """Raise ValueError for a regular file whose lines are not text. None is standard input."""
    if source is not None and not source.is_file():
        return
    with open(0 if source is None else source, "rb", buffering=0, closefd=source is not None) as file:
        begin = os.pread(file.fileno(), 8, 0) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    for magic, program in COMPRESSED.items():
        if begin.startswith(magic):
            name = source or "standard input"
            raise ValueError(f"{name} is compressed: unpack it first ({program} < {source or 'FILE'} > TEXT)")
