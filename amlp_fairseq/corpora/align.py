"""Add word alignments to binarised data: NAT with fertilities learns from them how many words each word becomes.

    amlp-fairseq align DATA OUT

DATA is a folder of ``amlp-fairseq prepare`` or ``distill``. OUT, a new folder, is a copy of it with what eflomal finds
for the training and the validation set, which ``--load-alignments`` reads: pip install "amlp-fairseq[align]".
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from fairseq.data import Dictionary

from amlp_fairseq.common.arguments import command_parser, folder, say_next
from amlp_fairseq.common.files import whole
from amlp_fairseq.common.subprocesses import failed
from amlp_fairseq.compat.internals import data_utils, indexed_dataset
from amlp_fairseq.training.config import quoted
from amlp_fairseq.training.data_folder import data_folder, stored_text, usual_scale

PROGRAM = "eflomal-align"
PARTS = ("train", "valid")


def installed() -> str | None:
    """The path of the program; None if it is not installed."""
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=str(Path(sys.executable).parent))


def aligner() -> str:
    """The path of the program.

    Raises:
        ValueError: if it is not installed.
    """
    found = installed()
    if found is None:
        raise ValueError(f'there is no {PROGRAM}, which makes alignments: pip install "amlp-fairseq[align]"')
    return found


def sentences(data: Path, pair: str, part: str, language: str) -> Iterator[str]:
    """The lines of one side of a part, as they were binarised."""
    words = Dictionary.load(str(data / f"dict.{language}.txt"))
    binarised = data_utils.load_indexed_dataset(str(data / f"{part}.{pair}.{language}"), words)
    return (words.string(binarised[i]) + "\n" for i in range(len(binarised)))


def align(data: Path, out: Path) -> None:
    """Write the copy.

    Raises:
        ValueError: if DATA is not such a folder, or has several training sets, or there is no aligner.
        ChildProcessError: if the aligner fails.
    """
    if stored_text(data) is None:
        raise ValueError(f"DATA {data} is not a folder of amlp-fairseq prepare or distill: it has no text.json")
    if out.exists():
        raise ValueError(f"OUT {out} exists already")
    pairs = sorted({tuple(path.name.split(".")[:2]) for path in data.glob("train*.*-*.*.idx")})
    if len(pairs) != 1:
        found = ", ".join(name for name, _ in pairs) or "none"
        raise ValueError(f"DATA {data}: one training set of pairs is needed, there are: {found}")
    program, pair = aligner(), pairs[0][1]
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole(out, unique=True) as (copy,), TemporaryDirectory() as scratch:
        work = Path(scratch)
        for language in pair.split("-"):
            with (work / language).open("w", encoding="utf-8") as file:
                for part in PARTS:
                    file.writelines(sentences(data, pair, part, language))
        source, target = pair.split("-")
        words = [program, "-s", work / source, "-t", work / target, "-f", work / "links"]
        print("+", quoted(words), file=sys.stderr, flush=True)
        done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise failed(PROGRAM, done.returncode, done.stdout)
        shutil.copytree(data, copy)
        with (work / "links").open(encoding="utf-8") as lines:
            for part in PARTS:
                count = len(data_utils.load_indexed_dataset(str(data / f"{part}.{pair}.{source}"), None))
                _binarise(lines, count, copy / f"{part}.align.{pair}")
            if next(lines, None) is not None:
                raise ValueError(f"{PROGRAM} has written more lines than there are pairs")


def _binarise(lines: Iterator[str], count: int, prefix: Path) -> None:
    """Take the next lines of the aligner, one a pair, into a data set whose files have this prefix: the numbers of
    source and target word of each link in turn, as fairseq-preprocess writes them."""
    builder = indexed_dataset.make_builder(indexed_dataset.data_file_path(str(prefix)), "mmap")
    for _ in range(count):
        line = next(lines, None)
        if line is None:
            raise ValueError(f"{PROGRAM} has written fewer lines than there are pairs")
        builder.add_item(torch.tensor([int(number) for link in line.split() for number in link.split("-")]))
    builder.finalize(indexed_dataset.index_file_path(str(prefix)))


def main() -> None:
    parser = command_parser("align", __doc__)
    parser.add_argument("data", metavar="DATA", type=data_folder, help="a folder of amlp-fairseq prepare or distill")
    parser.add_argument("out", metavar="OUT", type=folder, help="the folder to write")
    args = parser.parse_args()
    align(args.data, args.out)
    scale = usual_scale((stored_text(args.out) or {}).get("corpus", ""))
    say_next("train", args.out, "--row", "nat_fertility", "--scale", scale)


if __name__ == "__main__":
    main()
