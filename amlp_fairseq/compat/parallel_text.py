"""Text that fairseq-preprocess would binarise to something else than was meant."""

from __future__ import annotations

import codecs
from argparse import Namespace

SPLITS = ("trainpref", "validpref", "testpref")


def check(args: Namespace) -> None:
    """Read the files of a command line of fairseq-preprocess, before it writes anything.

    Raises:
        ValueError: naming file and line of what is not UTF-8, files that begin with a byte-order mark (fairseq takes it
            for a part of the first word), and sides that have different numbers of lines (fairseq pairs the first with
            the first, and so on).
        FileNotFoundError: for a file that does not exist.
    """
    languages = [args.source_lang, *([] if args.only_source else [args.target_lang])]
    for option in SPLITS:
        for prefix in filter(None, (getattr(args, option) or "").split(",")):
            paths = [f"{prefix}.{language}" if language else prefix for language in languages]
            counts = [_lines(path) for path in paths]
            if len(set(counts)) > 1:
                found = ", ".join(f"{path} has {count:,}" for path, count in zip(paths, counts, strict=True))
                raise ValueError(f"--{option}: the numbers of lines differ: {found}; line n translates line n")


def _lines(path: str) -> int:
    """How many lines fairseq will read."""
    with open(path, "rb") as file:
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            raise ValueError(f"{path} begins with a byte-order mark; without it: sed -i '1s/^\\xEF\\xBB\\xBF//' {path}")
    try:
        with open(path, encoding="utf-8") as text:  # as fairseq, for which a carriage return also ends a line
            return sum(1 for _ in text)
    except UnicodeDecodeError:
        raise ValueError(
            f"{path}, line {_first_not_utf8(path)}: this is not UTF-8; if it is Latin-1: iconv -f latin1 -t utf8 {path}"
        ) from None


def _first_not_utf8(path: str) -> int:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    raise AssertionError(f"{path} has changed")
