"""Translation programs as they are used, side by side, in the form of WMT's efficiency task: whole processes, raw lines
in through standard input, detokenised lines out through standard output.

    python -m benchmarks.efficiency --source test.en --reference test.de --model ar=DIR ibdecoder=DIR \\
        [--systems amlp-fairseq ctranslate2 fairseq] [--out FILE.json] [--markdown FILE.md] [--plot FILE.svg]

DIR is a model folder of amlp-fairseq package; of DIR:HELPER_DIR the second one drafts for the first if that is
autoregressive (--draft-path, greedily), or else reranks its hypotheses (--rescore-path). Systems
(line_systems.py), all with the same weights and text:

- amlp-fairseq: amlp-fairseq translate; any model. amlp-fairseq-pytorch: in PyTorch
- ctranslate2: CTranslate2, of amlp-fairseq export, in a program that only cuts text up besides; Transformers
- fairseq: stock fairseq-interactive without the plugin; Transformers, float32

- Latency, for each number of --latency-cores: a process, pinned to so many CPUs and with as many threads, is given a
  line when it has answered the one before. A line's latency is from its last byte in to the last byte of its
  translation out; the median over --repeats counts for a line, and the median over lines for the system.
- Throughput, on all CPUs: all lines at once from a file, --copies times over, so that loading weighs less, for each of
  --batch-tokens, and for CTranslate2 with a worker on all cores and with one on each. The table has the fastest; the
  file has all.
- Time: wall clock of the process, from its start to its end, with loading. "Less a one-line run" is that without the
  time of a process, in the same rounds, that translates the first line alone.
- Memory: the largest resident set of the process. Size: what it loads, on disk.
- BLEU and chrF, with --reference: sacreBLEU's, of the run that was timed. --seed NAME=DIR …: models that differ from
  NAME in the seed of their training give BLEU alone, with the first of --systems: the spread in tables and picture.
- All configurations take turns, in random order; medians over --repeats. A run is disturbed (quiet.py) if repeats
  differ much, if it had to wait for a CPU, or if something else used its CPUs.
- --out is written anew after each round. A configuration that fails is named and left out, and the status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.training.environment import environment
from benchmarks import quiet
from benchmarks.drawings import draw_efficiency
from benchmarks.efficiency_tables import tables, translation_key
from benchmarks.harness import MIB, add_files, check_files, write
from benchmarks.line_process import Failed, Job, run
from benchmarks.line_systems import SYSTEMS, USUAL, Setting

PRECISIONS = ("float32", "int8")


def jobs(args: argparse.Namespace, scratch: Path) -> tuple[list[Job], list[Row]]:
    """All configurations, and what is skipped."""
    chosen, skipped = [], []
    for name, folder, helper in args.model:
        for system in args.systems:
            work = scratch / f"{system} {name}"
            work.mkdir(parents=True)
            program = SYSTEMS[system](folder, work, helper)
            precisions = [precision for precision in args.precisions if precision in program.PRECISIONS]
            reason = program.lacks()
            try:
                for precision in precisions if reason is None else ():
                    program.prepare(precision)
            except subprocess.CalledProcessError as error:
                reason = error.stderr.strip().splitlines()[-1]
            if reason is not None:
                skipped.append({"system": system, "model": name, "reason": reason})
                continue
            for precision in precisions:
                for number in program.numbers(args.beams, args.iterations):
                    slow = [Setting(precision, number, cores) for cores in args.latency_cores]
                    cores = len(os.sched_getaffinity(0))
                    fast = [
                        Setting(precision, number, cores, batch, workers)
                        for batch in args.batch_tokens
                        for workers in program.workers(cores)
                    ]
                    chosen += [Job(system, name, program, setting) for setting in (*slow, *fast)]
    return chosen, skipped


def round_of(chosen: list[Job], lines: list[str], copies: int, folder: Path, seed: int) -> list[Row]:
    """Run each job once, for throughput with copies of the lines, and with one line; what failed, and why. What does
    not depend on batches runs once for all."""
    shuffled, failed = list(chosen), []
    random.Random(seed).shuffle(shuffled)
    one_line: dict[tuple[str, str, Setting], float] = {}
    for job in shuffled:
        streams = job.setting if job.setting.batch is None else replace(job.setting, batch=0)
        key = (job.system, job.model, streams)
        try:
            if key not in one_line:
                one_line[key] = run(job, lines[:1], folder)[0]["seconds"]
            text = lines if job.setting.batch is None else lines * copies
            report, job.outputs, ms = run(job, text, folder)
        except Failed as error:
            failed.append({"job": str(job), "reason": str(error)})
            chosen.remove(job)
            continue
        job.runs.append(report)
        job.one_line.append(one_line[key])
        job.answers += [ms] if ms else []
    return failed


def bleu_of_seeds(args: argparse.Namespace, scratch: Path) -> tuple[dict[tuple[str, ...], list[float]], list[Row]]:
    """By system, model, precision and decoding, BLEU of the models of --seed; and what failed."""
    scores: dict[tuple[str, ...], list[float]] = {}
    failed: list[Row] = []
    for number, model in enumerate(args.seed):
        batch, folder = args.batch_tokens[:1] or [1000], scratch / str(number)
        only = {"model": [model], "systems": args.systems[:1], "latency_cores": [], "batch_tokens": batch}
        chosen, skipped = jobs(argparse.Namespace(**{**vars(args), **only}), folder)
        failed += [{"job": f"seed {row['model']}", "reason": row["reason"]} for row in skipped]
        for job in {translation_key(job.facts): job for job in chosen}.values():  # however many workers there may be
            try:
                outputs = run(job, args.texts, folder)[1]
            except Failed as error:
                failed.append({"job": f"seed {job}", "reason": str(error)})
                continue
            scores.setdefault(translation_key(job.facts), []).append(
                BLEU().corpus_score(outputs, [args.references]).score
            )
    return scores, failed


def row_of(job: Job, references: list[str] | None, seeds: dict[tuple[str, ...], list[float]]) -> Row:
    """The numbers of a job that has run; ``seeds`` as of ``bleu_of_seeds``."""
    lines, seconds = len(job.outputs), statistics.median(report["seconds"] for report in job.runs)
    rest = statistics.median(report["seconds"] - first for report, first in zip(job.runs, job.one_line, strict=True))
    timings = [quiet.Timing(report["seconds"], report["cpu_seconds"], report["others"]) for report in job.runs]
    row = job.facts | {
        "seconds": [report["seconds"] for report in job.runs],
        "one_line_seconds": job.one_line,
        "cpu_seconds": [report["cpu_seconds"] for report in job.runs],
        "ms_per_line": 1000 * seconds / lines,
        "lines_per_second": lines / seconds,
        "peak_mib": max(report["peak_bytes"] for report in job.runs) / MIB,
        "size_mib": job.program.size(job.setting.precision) / MIB,
        "disturbed": quiet.disturbances([timings], job.setting.cores),
    }
    if lines > 1 and rest > 0:
        row |= {
            "ms_per_line_less_one_line": 1000 * rest / (lines - 1),
            "lines_per_second_less_one_line": (lines - 1) / rest,
        }
    if job.answers:
        by_line = list(zip(*job.answers, strict=True))
        ms = [statistics.median(repeats) for repeats in by_line]
        row |= {"first_ms": ms[0], "ms_percentiles": np.percentile(ms[1:] or ms, [5, 25, 50, 75, 95]).tolist()}
        row["ms_95"] = row["ms_percentiles"][-1]
        row["disturbed"] += quiet.unsteady(by_line[1:])  # the first one waits for the model
    if references is not None:
        bleu, chrf, outputs = BLEU(), CHRF(), job.outputs[: len(references)]  # of the first copy
        row["bleu"] = bleu.corpus_score(outputs, [references]).score
        row["chrf"] = chrf.corpus_score(outputs, [references]).score
        row["bleu_of_seeds"] = [row["bleu"], *seeds.get(translation_key(row), ())]
        row |= {"bleu_signature": str(bleu.get_signature()), "chrf_signature": str(chrf.get_signature())}
    return row


def parse_model(word: str) -> tuple[str, Path, Path | None]:
    """Name, folder and helper's folder of NAME=DIR:HELPER_DIR."""
    name, _, folders = word.partition("=")
    folder, _, helper = folders.partition(":")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{word!r}: give NAME=DIR or NAME=DIR:HELPER_DIR")
    return name, Path(folder), Path(helper) if helper else None


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", type=Path, required=True, metavar="FILE", help="raw text, a sentence a line")
    add("--reference", type=Path, metavar="FILE", help="its translations, for BLEU and chrF")
    add("--model", type=parse_model, nargs="+", required=True, metavar="NAME=DIR[:HELPER_DIR]", help="model folders")
    add("--seed", type=parse_model, nargs="+", default=[], metavar="NAME=DIR", help="a --model NAME of another seed")
    add("--systems", nargs="+", choices=SYSTEMS, default=USUAL, metavar="NAME", help=f"of {', '.join(SYSTEMS)}")
    add("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    add("--beams", type=positive, nargs="+", default=[4, 1], metavar="N")
    add("--iterations", type=positive, nargs="+", default=[10, 4], metavar="N", help="calls of iterative refinement")
    add("--latency-cores", type=positive, nargs="*", default=[1, 2], metavar="N", help="CPUs of each latency")
    add(
        "--batch-tokens",
        type=positive,
        nargs="*",
        default=[1000, 4000, 16000],
        metavar="N",
        help="source pieces of a batch",
    )
    add("--lines", type=positive, metavar="N", help="only the first N")
    add(
        "--copies",
        type=positive,
        default=1,
        metavar="N",
        help="copies of the lines that throughput translates (default: 1)",
    )
    add("--repeats", type=positive, default=3, metavar="N")
    add_files(parser, markdown="the tables", plot="BLEU over latency and throughput")
    args = parser.parse_args()
    if len({name for name, *_ in args.model}) < len(args.model):
        parser.error("--model: each NAME only once")
    for name, path in (("--source", args.source), ("--reference", args.reference)):
        if path is not None and not path.is_file():
            parser.error(f"{name} {path} is not a file")
    for name in {name for name, *_ in args.seed} - {name for name, *_ in args.model}:
        parser.error(f"--seed {name}: there is no --model of this name")
    if args.seed and args.reference is None:
        parser.error("--seed needs --reference FILE")
    for option, models in (("--model", args.model), ("--seed", args.seed)):
        for name, folder in [(name, folder) for name, *folders in models for folder in folders if folder]:
            if not (folder / "config.json").is_file():
                parser.error(f"{option} {name}: {folder} is not the folder of a model (amlp-fairseq package makes one)")
    if args.plot is not None and args.reference is None:
        parser.error("--plot needs --reference FILE")
    if (available := len(os.sched_getaffinity(0))) < max(args.latency_cores, default=0):
        parser.error(f"--latency-cores {max(args.latency_cores)}: this process may use {available} CPUs")
    check_files(parser, args)
    args.texts = read_references(args.source)[: args.lines]
    args.references = None if args.reference is None else read_references(args.reference)[: args.lines]
    if args.references is not None and len(args.references) != len(args.texts):
        parser.error(f"--reference {args.reference}: {len(args.references)} lines, --source has {len(args.texts)}")
    return args


def main() -> None:
    args = parsed()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        try:
            chosen, skipped = jobs(args, scratch / "models")
        except ValueError as error:  # a folder that is damaged
            sys.exit(str(error))
        if not chosen:
            reasons = "; ".join(f"{row['system']} {row['model']}: {row['reason']}" for row in skipped)
            sys.exit(f"there is nothing to measure; {reasons}")
        options = {name: value for name, value in vars(args).items() if name not in ("texts", "references")}
        result: dict[str, Any] = {
            **environment("cpu"),
            "options": json.loads(json.dumps(options, default=str)),
            "complete": False,
            "lines": len(args.texts),
            "words": sum(len(line.split()) for line in args.texts),
            "skipped": skipped,
        }
        seeds, result["failed"] = bleu_of_seeds(args, scratch / "seeds")
        for number in range(args.repeats):
            print(f"round {number + 1} of {args.repeats}: {len(chosen)} configurations", file=sys.stderr)
            result["failed"] += round_of(chosen, args.texts, args.copies, scratch, seed=number)
            result["rows"] = [row_of(job, args.references, seeds) for job in chosen]
            result["complete"] = number + 1 == args.repeats
            write(args.out, result)
    text = tables(result)
    print(text)
    if args.markdown is not None:
        args.markdown.write_text(text + "\n", encoding="utf-8")
    if args.plot is not None:
        draw_efficiency(result, args.plot)
    if result["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; --out has the rounds that were done")
