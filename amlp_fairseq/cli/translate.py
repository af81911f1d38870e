"""Translate raw text with a model folder: a line out for each line in, in order. The sentences of a line are translated
one by one.

    amlp-fairseq translate --model DIR < in.txt > out.txt
    amlp-fairseq translate --model DIR --jsonl --nbest 3 --beam 5 < in.txt > out.jsonl
    amlp-fairseq translate --model DIR --shards IN_DIR --output OUT_DIR --workers 4      (docs/large-corpora.md)

Further options are those of fairseq-generate that are about decoding (--beam, --lenpen, --decode-dtype int8,
--iter-decode-max-iter, ...); by default those of the model are taken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from amlp_fairseq.cli import serve
from amlp_fairseq.cli.arguments import add_translator_arguments, decoding_flags, refuse_details, translator_settings
from amlp_fairseq.common.arguments import command_parser, positive
from amlp_fairseq.common.exit_handling import whole_lines
from amlp_fairseq.common.lines import buffered_read, refuse_closed_input
from amlp_fairseq.compat.command_line import parse_with_fairseqs
from amlp_fairseq.text import sentences
from amlp_fairseq.translator.translator import Translation, Translator

#: How compressed files begin, and what unpacks them.
COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


def translated(translator: Translator, source: Path | None, buffer: int) -> Iterator[tuple[str, Translation]]:
    """The lines of a file, or of standard input, with their translations.

    Raises:
        ValueError: for a compressed file, and a line that is too long, naming it.
    """
    refuse_compressed(source)
    terminal = source is None and sys.stdin.isatty()
    before = 0
    progress = tqdm(unit=" lines", disable=terminal or not sys.stderr.isatty())
    with progress:
        for lines in buffered_read(str(source or "-"), 1 if terminal else buffer):
            try:
                yield from zip(lines, translator.translations(lines), strict=True)
            except sentences.TooLong as error:
                raise ValueError(f"line {before + error.number}: {error}") from None
            before += len(lines)
            progress.update(len(lines))


def main() -> None:
    parser = command_parser("translate", __doc__)
    add_translator_arguments(parser, "lines")
    parser.add_argument("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    details = "with score, decoder calls, alternatives (--nbest) and alignment (--print-alignment)"
    parser.add_argument(
        "--shards", type=Path, nargs="+", metavar="PATH", help="files, or folders of files; --output is a folder, too"
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="workers of Ray that translate --shards (default: this process)"
    )
    parser.add_argument("--jsonl", action="store_true", help=f"a line of JSON for each line, {details}")
    parser.add_argument(
        "--buffer-size",
        type=positive,
        default=1000,
        metavar="N",
        help="lines that are read at a time (default: 1000)",
    )
    parser.add_argument("--serve", metavar="PORT", help="serve over HTTP: amlp-fairseq serve --port PORT")
    as_server = [re.sub("^--serve(?==|$)", "--port", word) for word in sys.argv[1:]]
    if as_server != sys.argv[1:]:
        serve.run(as_server)
        return
    args, words = parse_with_fairseqs(parser, accepted=lambda args: decoding_flags(args.model))
    settings = translator_settings(args, words)
    if not args.jsonl:
        refuse_details(settings, "needs --jsonl: a line of text is the best translation alone")
    if args.shards is not None:
        translate_shards(args, settings)
        return
    if args.workers is not None:
        raise ValueError("--workers N needs --shards PATH, the files that they share out")
    check_files(args.input, args.output)
    translator, told = Translator(args.model, **settings), False
    with nullcontext(sys.stdout) if args.output is None else whole_lines(args.output) as output:
        for number, (line, translation) in enumerate(translated(translator, args.input, args.buffer_size), 1):
            if translation.cuts and not told:
                told = True
                say(f"line {number} has {about_cuts(translator)}; others are not named, --jsonl has their 'cuts'")
            print(as_json(line, translation) if args.jsonl else translation.text, file=output)


def about_cuts(translator: Translator) -> str:
    """What has become of a sentence with a cut."""
    what = "cut between words" if translator.long == "split" else "not read to its end"
    return f"a sentence of more than {translator.max_length} pieces (--max-length), which was {what}"


def say(text: str) -> None:
    """Print a line to standard error, above a bar of progress."""
    with tqdm.external_write_mode(file=sys.stderr):
        print(f"amlp-fairseq translate: {text}", file=sys.stderr, flush=True)


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


def translate_shards(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    from amlp_fairseq.translator import shards  # which imports this module

    if args.output is None or args.input is not None:
        raise ValueError("--shards PATH needs --output DIR, and takes no --input")
    shards.run(shards.Job(args.model, settings, args.jsonl, args.buffer_size), args.shards, args.output, args.workers)


def as_json(line: str, translation: Translation) -> str:
    return json.dumps({"source": line, **asdict(translation)}, ensure_ascii=False)


if __name__ == "__main__":
    main()
