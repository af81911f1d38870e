"""Train and evaluate every row of a paper's tables at reduced scale, raw and distilled.

    bash scripts/reproduce.sh --dataset embedded --table ibdecoder [--seeds 1 2 3] [--rows ROW …] [--jobs 2]

Rows are the configurations configs/<dataset>/*.yaml that name the table. Distilled rows learn from what the row
``transformer`` makes of the training set (scripts/distill.sh). Results go to docs/results/<dataset>.jsonl, tables of
them to a .md beside it (scripts/make_tables.py). What is in the results is not run again, and a stopped training
continues. On a CPU, jobs should have one thread each: OMP_NUM_THREADS=1. With several jobs sentences are decoded in
batches and no latencies are stored, for the jobs disturb each other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from recipe import CONFIGS, load, quoted
from result_lines import read_results

ROOT = Path(__file__).parent.parent
DATASETS = ("embedded", "multi30k", "multi30k_base")
TABLES = ("ibdecoder", "sat", "dynamicconv", "aan", "amlp")
TEACHER = "transformer"


class Experiment(NamedTuple):
    """A row with the data that it is trained on and its seed."""

    row: str
    distilled: bool
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row}{'-distilled' * self.distilled}-{self.seed}"


class Reproduction:
    """All experiments on one data set.

    Args:
        dataset: one of ``DATASETS``.
        work: the folder for data and checkpoints.
        results: the file of results.
        rest: options for preparing the data (``--data DIR``).
        options: options for all of fairseq's programs, such as ``--cpu``.
        decoding: options for evaluating alone.
    """

    def __init__(
        self,
        dataset: str,
        work: Path,
        results: Path,
        rest: Sequence[str],
        options: Sequence[str],
        decoding: Sequence[str],
    ) -> None:
        self.configs, self.work, self.results = CONFIGS / dataset, work, results
        self.rest, self.options, self.decoding = rest, options, decoding

    def rows(self, table: str) -> list[str]:
        """The rows of a paper's tables."""
        recipes = [load(path) for path in sorted(self.configs.glob("[!_]*.yaml"))]
        return [
            recipe.row for recipe in recipes if any(entry["table"].split()[0] == table for entry in recipe.published)
        ]

    def done(self) -> set[Experiment]:
        """What the file of results has of the test set, in all ways of decoding."""
        if not self.results.exists():
            return set()
        found: dict[Experiment, set[str]] = {}
        for line in read_results(self.results):
            if line["split"] == "test":
                experiment = Experiment(line["system"], line["distilled"], line["seed"])
                found.setdefault(experiment, set()).add(line["decoding"])
        return {
            experiment
            for experiment, decodings in found.items()
            if decodings >= load(self.configs / f"{experiment.row}.yaml").generate.keys()
        }

    def script(self, name: str, *words: object) -> None:
        """Run a script of this folder; what it prints goes to the work folder.

        Raises:
            RuntimeError: if it fails.
        """
        log = self.work / "logs" / f"{name.split()[-1]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = ["bash", str(ROOT / "scripts" / name.split()[0]), *map(str, words)]
        print("+", quoted(command), file=sys.stderr, flush=True)
        with log.open("a", encoding="utf-8") as file:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if status:
            raise RuntimeError(f"{quoted(command)}: status {status}, see {log}")

    def data(self, distilled: bool) -> Path:
        """The folder of the data, made where it is missing."""
        dataset = self.configs.name.split("_")[0]
        raw, out = self.work / "data/data-bin", self.work / "distilled"
        if not raw.exists():
            size = ["--vocab-size", "8000"] if self.configs.name == "multi30k_base" else []
            self.script(f"prepare_{dataset}.sh", self.work / "data", *size, *self.rest)
        if distilled and not out.exists():
            teacher = Experiment(TEACHER, distilled=False, seed=1)
            if not (self.work / teacher.name / "average.pt").exists():
                self.run(teacher)
            self.script("distill.sh", self.work / teacher.name / "average.pt", raw, out, *self.options)
        return out if distilled else raw

    def run(self, experiment: Experiment) -> None:
        """Train and evaluate."""
        config, folder = self.configs / f"{experiment.row}.yaml", self.work / experiment.name
        data = self.data(experiment.distilled)
        seed = ["--seed", experiment.seed]
        self.script(f"train.sh {experiment.name}", config, data, "--save-dir", folder, *seed, *self.options)
        words = [config, folder, data, "--results", self.results]
        self.script(f"evaluate.sh {experiment.name}", *words, *self.options, *self.decoding)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="reproduce.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--dataset", choices=DATASETS, required=True)
    parser.add_argument("--table", choices=TABLES, required=True)
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--data", type=Path, help="folder of Multi30k's text, which is downloaded otherwise")
    parser.add_argument("--work", type=Path, help="by default work/<dataset>")
    parser.add_argument("--results", type=Path, help="by default docs/results/<dataset>.jsonl")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    results = args.results or ROOT / f"docs/results/{args.dataset}.jsonl"
    reproduction = Reproduction(
        args.dataset,
        args.work or ROOT / "work" / args.dataset,
        results.resolve(),
        ["--data", str(args.data)] if args.data else [],
        ["--cpu"] if args.device == "cpu" else ["--fp16"],
        ["--batch-size", "50"] if args.jobs > 1 else [],
    )
    rows = reproduction.rows(args.table)
    if unknown := set(args.rows or ()) - set(rows):
        parser.error(f"--rows {' '.join(sorted(unknown))}: choose from {' '.join(rows)}")
    experiments = [
        Experiment(row, distilled, seed)
        for seed in args.seeds
        for distilled in (False, True)
        for row in (args.rows or rows)
    ]
    try:
        reproduction.data(distilled=True)
        done = reproduction.done()
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(reproduction.run, [each for each in experiments if each not in done]))
    except (RuntimeError, OSError, ValueError) as error:
        sys.exit(f"reproduce: {error}")
    tables = results.with_suffix(".md")
    tables.write_text(
        subprocess.run(
            [sys.executable, str(ROOT / "scripts/make_tables.py"), str(results)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout,
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
