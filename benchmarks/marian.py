"""The engine beside Marian, with models of one architecture, in int8, on the CPU.

    python -m benchmarks.marian CHECKOUT [--threads 1 2] [--out FILE.json] [--markdown FILE.md]

CHECKOUT: of https://github.com/browsermt/marian-dev with its submodules, built in CHECKOUT/build. Intel's MKL is that
of PyPI's mkl-static and mkl-include, in a virtual environment:

    export MKLROOT=ENVIRONMENT
    cmake .. -DCMAKE_BUILD_TYPE=Release -DCOMPILE_CUDA=off -DUSE_SENTENCEPIECE=off -DUSE_DOXYGEN=off
    make marian_train marian_decoder marian_conv

WMT-base sizes, all embeddings tied, random weights: Marian's after one update, ours as they are drawn. Every source has
25 words and every output 26, in as many decoder calls: no output may end before. Marian's weights are converted to
intgemm8, its inputs shifted and with precomputed scales: --int8shiftAlphaAll, its fastest way; greedily with
--skip-cost. Frequencies of words are Zipf's, in sources and in shortlists, which have at most 100 words for each word
of a source and 200 for all: Marian takes the union over a batch, the engine each sentence's.

Marian's seconds are what it says that the translation took, without loading; the engine's are of calls, after a
warm-up. Both take turns, in random order; a time is the median over --repeats, and the ratio the median of the ratios
of a round. With two threads both translate two batches at a time.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.training.environment import environment
from amlp_fairseq.translator import Translator, engine_backend
from benchmarks.engine import BASE, folder_of, lexicon, words
from benchmarks.harness import add_files, check_files, rounds, seconds, write, write_tables
from benchmarks.tables import fields, table

#: Words of a source; an output has one more.
LENGTH = 25
#: Of each system of systems.py, Marian's options, and those of its sizes.
MODELS = {
    "transformer": "--dec-depth 6",
    "transformer-student": "--dec-depth 2",
    "ssru-student": "--dec-depth 2 --transformer-decoder-autoreg rnn --dec-cell ssru",
}
SIZES = "--dim-emb {embed_dim} --transformer-dim-ffn {ffn_embed_dim} --transformer-heads {heads} --enc-depth {layers}"


def zipf(chance: random.Random, count: int) -> list[str]:
    """So many words, the k-th of which has a frequency proportional to 1 / k."""
    number = BASE["vocabulary"] - 4
    return [f"w{int((number + 1) ** chance.random()) - 1}" for _ in range(count)]


class Marian:
    """Marian's programs.

    Args:
        checkout: its folder.
        scratch: a folder for models.
    """

    def __init__(self, checkout: Path, scratch: Path) -> None:
        self.checkout, self.scratch = checkout, scratch
        self.vocabulary = scratch / "vocabulary.yml"
        symbols = ["</s>", "<unk>", *(f"w{i}" for i in range(BASE["vocabulary"] - 2))]
        self.vocabulary.write_text("".join(f'"{word}": {i}\n' for i, word in enumerate(symbols)), encoding="utf-8")

    def run(self, program: str, *arguments: str | Path, **options: Any) -> str:
        """What a program of Marian's says."""
        command = [str(self.checkout / "build" / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stderr

    def model(self, name: str, lines: Path) -> Path:
        """A model with random weights that never ends a text, ready for int8."""
        sizes = f"{SIZES.format(**BASE)} --dim-vocabs {BASE['vocabulary']} {BASE['vocabulary']} {MODELS[name]}"
        update = "--type transformer --tied-embeddings-all --after-batches 1 --mini-batch 2 --cpu-threads 1 -w 2000"
        path = self.scratch / f"{name}.npz"
        self.run("marian", *f"{sizes} {update}".split(), "-t", lines, lines, *self.files(path))
        weights = dict(np.load(path))
        weights["decoder_ff_logit_out_b"][0, :2] = -1e4
        np.savez(path, **weights)
        dump = "--gemm-precision int8shift --dump-quantmult --max-length-factor 1 -w 512 --mini-batch 8 --cpu-threads 1"
        files = [*self.files(path), "-i", lines, "-o", os.devnull]
        said = self.run("marian-decoder", *files, *dump.split(), "--quiet", "--quiet-translation")
        scales, scaled = self.scratch / "scales", self.scratch / f"{name}-scaled.npz"
        scales.write_text("".join(re.findall("^Name:.*\n", said, re.MULTILINE)), encoding="utf-8")
        script = self.checkout / "scripts/alphas/extract_stats.py"
        subprocess.run([sys.executable, script, scales, path, scaled], check=True, stdout=subprocess.DEVNULL)
        weights = dict(np.load(scaled))
        config = weights.pop("special:model.yml")
        np.savez(scaled, **{"special:model.yml": config, **weights})  # marian-conv reads no further
        self.run("marian-conv", "-f", scaled, "-t", path.with_suffix(".bin"), "-g", "intgemm8")
        return path.with_suffix(".bin")

    def files(self, model: Path) -> list[str | Path]:
        """Options with the files of a model."""
        return ["-m", model, "-v", self.vocabulary, self.vocabulary]

    def search(self, model: Path, beam: int, batch: int, threads: int) -> list[str | Path]:
        """Options of marian-decoder."""
        options = f"--gemm-precision int8shiftAlphaAll -b {beam} --max-length-factor 1 -w 512 --quiet-translation"
        options += f" --cpu-threads {threads} --mini-batch {batch} --maxi-batch 100 --maxi-batch-sort src"
        return [*self.files(model), *options.split(), *["--skip-cost"] * (beam == 1)]

    def seconds(self, options: list[str | Path], lines: Path, cpus: set[int]) -> float:
        """What a translation takes, without loading."""
        out = self.scratch / "out"
        pin = partial(os.sched_setaffinity, 0, cpus)
        found = self.run("marian-decoder", *options, "-i", lines, "-o", out, preexec_fn=pin)
        if {len(line.split()) for line in out.read_text(encoding="utf-8").splitlines()} != {LENGTH + 1}:
            raise SystemExit(f"{options}: outputs of another length")
        (taken,) = re.findall(r"Total time: ([0-9.]+)s wall", found)
        return float(taken)


def write_inputs(scratch: Path, count: int) -> tuple[dict[int, Path], Path]:
    """Sentences in a file for each size of batches, of single ones a quarter as many; and a shortlist."""
    chance = random.Random(1)
    lines = [" ".join(zipf(chance, LENGTH)) for _ in range(count)]
    files = {1: scratch / "single", 64: scratch / "batches"}
    for batch, path in files.items():
        some = lines if batch > 1 else lines[: max(1, count // 4)]
        path.write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
    return files, lexicon(scratch / "lex.s2t", lines, lambda: sorted(set(zipf(chance, 200)))[:100])


def measured(args: argparse.Namespace, scratch: Path) -> list[Row]:
    marian, rows = Marian(args.checkout, scratch), []
    files, lists = write_inputs(scratch, args.sentences)
    cpus = sorted(os.sched_getaffinity(0))
    for name in MODELS:
        model, folder = marian.model(name, files[64]), folder_of(scratch / name, name, BASE, "int8")
        for threads, shortlist, beam in product(args.threads, (False, True), (4, 1)):
            more: Any = {"shortlist": str(lists)} if shortlist else {}
            own = Translator(folder, backend="engine", inter_threads=threads, intra_threads=1, **more)
            for batch, path in files.items():
                engine_backend.MAX_SENTENCES = batch
                lines = path.read_text(encoding="utf-8").splitlines()
                call = partial(words, own, lines, beam, LENGTH + 1)
                options = marian.search(model, beam, batch, threads)
                options += ["--shortlist", lists, "200", "100", "0"] * shortlist
                used = set(cpus[:threads])
                os.sched_setaffinity(0, used)
                call()
                calls: dict[str, Callable[[], float]] = {
                    "engine": partial(seconds, call, "cpu"),
                    "marian": partial(marian.seconds, options, path, used),
                }
                found = rounds(calls, args.repeats)
                os.sched_setaffinity(0, cpus)
                row: Row = {"model": name, "shortlist": "yes" if shortlist else "no", "beam": beam, "batch": batch}
                row["threads"] = threads
                row |= {f"{key} ms": 1000 * statistics.median(each) / len(lines) for key, each in found.items()}
                ratios = [one / other for one, other in zip(found["engine"], found["marian"], strict=True)]
                rows.append({**row, "engine/marian": statistics.median(ratios)})
                print(rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of Marian, built")
    parser.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    parser.add_argument(
        "--sentences", type=positive, default=128, help="in batches of 64; a quarter of them one by one"
    )
    parser.add_argument("--repeats", type=positive, default=3)
    add_files(parser, markdown="the table")
    args = parser.parse_args()
    check_files(parser, args)
    if not (args.checkout / "build/marian-decoder").is_file():
        parser.error(f"{args.checkout}: there is no build/marian-decoder (see --help)")
    torch.set_num_threads(1)
    options = {name: value for name, value in vars(args).items() if name not in ("out", "markdown", "checkout")}
    result: dict[str, Any] = {"environment": environment("cpu"), "options": options}
    git = ["git", "-C", str(args.checkout), "rev-parse", "HEAD"]
    result["marian"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        result["milliseconds"] = measured(args, Path(scratch))
    write(args.out, result)
    facts = result["environment"]
    versions = f"commit {facts['commit']}, Marian {result['marian'][:12]}"
    text = f"{facts['device']}, {facts['isa']}; {versions}, {facts['date']}; milliseconds for a sentence\n"
    rows = result["milliseconds"]
    write_tables(f"{text}\n{table(rows, fields(rows[0]))}\n", args)


if __name__ == "__main__":
    main()
