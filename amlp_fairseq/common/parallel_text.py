"""Validate parallel text: encoding, byte order marks, carriage returns, numbers of lines; errors name the way out."""

from __future__ import annotations

import codecs
import shlex
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

SPLITS = ("trainpref", "validpref", "testpref")


def check(args: Namespace) -> None:
    """Read the files of a command line of fairseq-preprocess, before it writes anything.

    Raises:
        ValueError: naming file and line of what is not UTF-8, files that begin with a byte-order mark (fairseq takes it
            for a part of the first word), of pairs also lines with a carriage return inside (fairseq takes it for their
            end), and sides that have different numbers of lines (fairseq pairs the first with the first, and so on).
        FileNotFoundError: for a file that does not exist.
    """
    languages = [args.source_lang, *([] if args.only_source else [args.target_lang])]
    for option in SPLITS:
        for prefix in filter(None, (getattr(args, option) or "").split(",")):
            paths = [f"{prefix}.{language}" if language else prefix for language in languages]
            counts = [_lines(path, paired=len(paths) > 1) for path in paths]
            if len(set(counts)) > 1:
                found = ", ".join(f"{path} has {count:,}" for path, count in zip(paths, counts, strict=True))
                raise ValueError(f"--{option}: the numbers of lines differ: {found}; line n translates line n")


def _lines(path: str, paired: bool) -> int:
    with open(path, "rb") as file:
        return check_lines(path, file, paired)


def check_lines(path: str | Path, lines: Iterable[bytes], paired: bool = False) -> int:
    """Count lines of a file.

    Args:
        path: its name.
        lines: as they are.
        paired: whether fairseq will pair them with those of another file.

    Raises:
        ValueError: for lines that are not UTF-8 or begin with a byte-order mark, and paired ones with a carriage return
            inside.
    """
    number = 0
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            in_place = "" if _is_compressed(path) else " -i"
            command = _with_file(rf"sed{in_place} '1s/^\xEF\xBB\xBF//'", path)
            raise ValueError(f"{path} begins with a byte-order mark; without it: {command}")
        try:
            line.decode()
        except UnicodeDecodeError:
            raise _not_utf8(path, number) from None
        if paired and b"\r" in line.removesuffix(b"\r\n"):
            command = _with_file(r"sed -i 's/\r/ /g'", path)
            raise ValueError(f"{path}, line {number} has a carriage return inside, where fairseq ends it: {command}")
    return number


def read(path: Path) -> str:
    """The text of a file, without a byte-order mark.

    Raises:
        ValueError: naming file and line of what is not UTF-8.
    """
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, content.count(b"\n", 0, error.start) + 1) from None


def _not_utf8(path: str | Path, number: int) -> ValueError:
    command = _with_file("iconv -f latin1 -t utf8", path)
    return ValueError(f"{path}, line {number}: this is not UTF-8; if it is Latin-1: {command}")


def _with_file(command: str, path: str | Path) -> str:
    """A command line that reads a file, which may be compressed."""
    name = shlex.quote(str(path))
    return f"zcat {name} | {command}" if _is_compressed(path) else f"{command} {name}"


def _is_compressed(path: str | Path) -> bool:
    return str(path).endswith(".gz")


def read_references(path: Path) -> list[str]:
    """The raw references of a file, one a line; only a newline ends a line.

    Raises:
        ValueError: if it is empty.
    """
    text = read(path)
    if not text:
        raise ValueError(f"{path} is empty")
    return text.removesuffix("\n").split("\n")
