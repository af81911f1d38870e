"""Translate raw text with a model folder: a line out for each line in, in order. The sentences of a line are translated
one by one.

    amlp-fairseq translate --model DIR < in.txt > out.txt
    amlp-fairseq translate --model DIR --format html --input page.html --output seite.html
    amlp-fairseq translate --model DIR --jsonl --nbest 3 --beam 5 < in.txt > out.jsonl
    amlp-fairseq translate --model DIR --shards IN_DIR --output OUT_DIR --workers 4      (docs/large-corpora.md)

Further options are those of fairseq-generate that are about decoding (--beam, --lenpen, --decode-dtype int8,
--iter-decode-max-iter, ...); by default those of the model are taken.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from amlp_fairseq.cli.arguments import add_translator_arguments, parse_translator_arguments, refuse_details
from amlp_fairseq.common.arguments import command_parser, positive
from amlp_fairseq.common.files import line_by_line
from amlp_fairseq.text.documents import FORMATS
from amlp_fairseq.text.inline import KEEP, keeper
from amlp_fairseq.translator import text_shards
from amlp_fairseq.translator.files import (
    Beside,
    about_cuts,
    as_json,
    check_files,
    say,
    translated,
    translated_document,
)
from amlp_fairseq.translator.translator import Translator

INSTALL = 'pip install "ray[data]>=2.60,<2.64"'


def main() -> None:
    parser = command_parser("translate", __doc__)
    add_translator_arguments(parser, "lines")
    parser.add_argument("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="output file (default: standard output)")
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
    parser.add_argument(
        "--target-prefix",
        type=Path,
        metavar="FILE",
        help="begins of the translations, a line for each; the last word may go on, unless a space follows it",
    )
    parser.add_argument(
        "--target-suffix",
        type=Path,
        metavar="FILE",
        help="ends of the translations, for models that write from both ends",
    )
    parser.add_argument(
        "--jsonl-input",
        action="store_true",
        help='a line is {"text": …}, perhaps with a "prefix" and a "suffix" of its translation',
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="translate a document, whose form stays: paragraphs with hard line breaks, lists and tables of a text; "
        "markup (default: a line for each line)",
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        default=[],
        metavar="REGEX",
        help="regular expressions of what a document keeps, beside addresses, placeholders and flags",
    )
    args, settings = parse_translator_arguments(parser)
    if not args.jsonl:
        refuse_details(settings, "needs --jsonl: a line of text is the best translation alone")
    beside = Beside(args.target_prefix, args.target_suffix, args.jsonl_input)
    if args.jsonl_input and (args.target_prefix or args.target_suffix):
        raise ValueError("--target-prefix and --target-suffix: the lines of --jsonl-input have them")
    if args.shards is not None:
        if args.format is not None:
            raise ValueError(f"--shards are lines of text: --format {args.format} needs --input")
        if beside != Beside():
            raise ValueError("--shards are plain text: --target-prefix, --target-suffix and --jsonl-input need --input")
        if args.output is None or args.input is not None:
            raise ValueError("--shards PATH needs --output DIR, and takes no --input")
        job = text_shards.Job(args.model, settings, args.jsonl, args.buffer_size)
        text_shards.run(
            job, args.shards, args.output, text_shards.here if args.workers is None else on_ray(args.workers)
        )
        return
    if args.workers is not None:
        raise ValueError("--workers N needs --shards PATH, the files that they share out")
    check_files(args.input, args.output)
    for given in (args.target_prefix, args.target_suffix):
        if given is not None:
            check_files(given, args.output)
    if args.format is not None:
        if beside != Beside() or args.jsonl:
            raise ValueError(
                f"--format {args.format} is a document, not lines: no --jsonl, --target-prefix, --target-suffix"
            )
        keeper((*KEEP, *args.keep))
        with Translator(args.model, **settings) as translator:
            parts = translated_document(translator, args.input, args.buffer_size, args.format, args.keep)
            with nullcontext(sys.stdout) if args.output is None else line_by_line(args.output) as output:
                for part in parts:
                    output.write(part)
        return
    if args.keep:
        raise ValueError("--keep REGEX needs --format: --format text for plain text")
    translator, told = Translator(args.model, **settings), False
    with nullcontext(sys.stdout) if args.output is None else line_by_line(args.output) as output:
        for number, (line, translation) in enumerate(translated(translator, args.input, args.buffer_size, beside), 1):
            if translation.cuts and not told:
                told = True
                say(f"line {number} has {about_cuts(translator)}; others are not named, --jsonl has their 'cuts'")
            if "\n" in line and not args.jsonl:
                raise ValueError(f"line {number}: a text with a line feed is not a line: --jsonl prints it as one")
            print(as_json(line, translation) if args.jsonl else translation.text, file=output)


def on_ray(workers: int) -> text_shards.Outcomes:
    """Shards translated by workers of Ray.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        from amlp_fairseq.translator import on_ray
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "pyarrow", "pandas"):
            raise
        raise ValueError(f"--workers needs {error.name}, which is not installed: {INSTALL}") from None
    return partial(on_ray.outcomes, workers=workers)


if __name__ == "__main__":
    main()
