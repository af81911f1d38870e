"""Train and evaluate every row of a paper's tables, raw and distilled.

    amlp-fairseq reproduce --corpus embedded --scale embedded --table ibdecoder [--seeds 1 2 3] [--rows ROW …]
                           [--dry-run] [options of fairseq-train]

Rows are those of configs/rows that name the table: ``--table "ibdecoder 1"``, or ``ibdecoder`` for all tables of that
paper. The data are prepared as the paper says. Distilled rows learn from the translations that the row ``transformer``
makes of the training set (amlp-fairseq distill), with several --teacher-seeds an ensemble of it; with --from-teacher,
they also begin with what fits of the first teacher's parameters; with --rescore, those that write several words at once
are evaluated a second time, and that teacher reranks their hypotheses. Where a table is of the validation set,
that is decoded, too. A training that diverges is a result. Results go to WORK/results.jsonl, their tables to a .md file
next to it (amlp-fairseq tables). Rows that have results on the same data are not run again; a stopped training
continues. --dry-run prints the commands and runs none. Options of fairseq-train are for all trainings: ``--bf16`` is
faster on CPUs that multiply in it. On a CPU, jobs should have one thread each: OMP_NUM_THREADS=1. With several jobs,
sentences are decoded in batches and no latencies are stored, because the jobs slow each other down.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amlp_fairseq.common.arguments import add_device, command_parser, nearest, parse_with_fairseqs, positive, say_next
from amlp_fairseq.compat.flags import fairseqs_flags, known_flags
from amlp_fairseq.corpora.align import aligner
from amlp_fairseq.evaluation.experiment import Experiment
from amlp_fairseq.evaluation.reproduction import TARGETS, Reproduction
from amlp_fairseq.training.config import (
    corpus_metric,
    names,
    paper_of,
    paper_variant,
    tables,
)


def table_name(text: str) -> str:
    """A table's name, or its paper's."""
    papers = sorted({paper_of(table) for table in tables()})
    if text not in (*papers, *tables()):
        near = nearest(text, [*papers, *tables()])
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(papers)}; their tables, as in 'ibdecoder 1'"
        raise argparse.ArgumentTypeError(f"{text!r} is unknown; {hint}")
    return text


def default_work(corpus: str, table: str, scale: str) -> Path:
    """A folder for each corpus, each way of preparing it, and each scale: work/wmt14_en_de-dynamicconv-paper."""
    return Path("work", "-".join(dict.fromkeys(filter(None, (corpus, paper_variant(corpus, table), scale)))))


def main() -> None:
    parser = command_parser("reproduce", __doc__)
    parser.add_argument("--corpus", choices=names("data"), required=True)
    parser.add_argument("--scale", choices=names("scale"), required=True)
    parser.add_argument("--table", type=table_name, required=True, help="a table, or a paper: all of its tables")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=TARGETS,
        help="default: both; at scale paper what the table has; of language models raw",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--jobs", type=positive, default=1, help="experiments that run at the same time")
    parser.add_argument("--data", type=Path, help="the corpus' text (default: it is downloaded)")
    parser.add_argument("--work", type=Path, help="for data and checkpoints (default: work/CORPUS[-VARIANT][-SCALE])")
    parser.add_argument("--results", type=Path, help="by default WORK/results.jsonl")
    add_device(parser, "cpu", "default: cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")
    parser.add_argument(
        "--from-teacher",
        action="store_true",
        help="on distilled data, begin with what fits of the first teacher's parameters (--finetune-from-model)",
    )
    parser.add_argument(
        "--teacher-seeds",
        nargs="+",
        type=int,
        default=[1],
        metavar="SEED",
        help="seeds of the Transformers that distilled rows learn from (default: 1)",
    )
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="evaluate distilled rows that write several words at once a second time: the first teacher reranks "
        "their hypotheses (--rescore-path)",
    )
    args, training = parse_with_fairseqs(parser, known_flags, accepted=lambda args: fairseqs_flags("training"))
    if args.dry_run and args.from_teacher:
        parser.error("--dry-run: no command alone does what --from-teacher does")
    work = args.work or default_work(args.corpus, args.table, args.scale)
    reproduction = Reproduction(
        args.corpus,
        args.scale,
        work,
        args.results or work / "results.jsonl",
        args.table,
        list(dict.fromkeys(args.seeds)),
        rest=["--data", str(args.data)] if args.data else [],
        options=["--cpu"] if args.device == "cpu" else ["--fp16"],
        decoding=["--batch-size", "50"] if args.jobs > 1 else [],
        training=training,
        from_teacher=args.from_teacher,
        teacher_seeds=args.teacher_seeds,
        rescore=args.rescore,
        dry_run=args.dry_run,
    )
    rows = reproduction.rows()
    if not rows:
        parser.error(f"--table {args.table}: none of its rows is of what --corpus {args.corpus} is for")
    if unknown := set(args.rows or ()) - set(rows):
        parser.error(f"--rows {' '.join(sorted(unknown))}: choose from {' '.join(rows)}")
    if corpus_metric(args.corpus) == "perplexity" and "distilled" in (args.targets or ()):
        parser.error(f"--targets distilled: {args.corpus} is for language models, which have no targets to distill")
    run_all(reproduction, args.rows or rows, args.targets, args.jobs)


def run_all(reproduction: Reproduction, rows: Sequence[str], targets: Sequence[str] | None, jobs: int) -> None:
    """Run these rows, so many at a time, on the targets, by default each row on its own."""
    experiments = [
        Experiment(row, target == "distilled", seed)
        for seed in reproduction.seeds
        for target in TARGETS
        for row in rows
        if target in (targets or reproduction.targets(row))
    ]
    needed = dict.fromkeys((each.distilled, reproduction.needs_alignments(each.row)) for each in experiments)
    if any(aligned for _, aligned in needed) and not reproduction.dry_run:
        aligner()  # before hours of training
    for distilled, aligned in needed:
        reproduction.data(distilled, aligned)
    known = reproduction.known()
    missing = [each for each in experiments if reproduction.evaluations(each, known[each])]
    missing = [each for each in missing if reproduction.average(each) not in reproduction.made]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(reproduction.run, missing, [known[each] for each in missing]))
    reproduction.compare(rows, reproduction.known())
    reproduction.write_tables()
    if not reproduction.dry_run:
        say_next("report", reproduction.results, "--out", "report.html")


if __name__ == "__main__":
    main()
