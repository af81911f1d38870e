"""Train and evaluate every row of a paper's tables at reduced scale, raw and distilled.

    amlp-fairseq reproduce --corpus embedded --scale embedded --table ibdecoder [--seeds 1 2 3] [--rows ROW …]
                           [options of fairseq-train]

Rows are those of configs/rows that name the table. Distilled rows learn from the translations that the row
``transformer`` makes of the training set (amlp-fairseq distill), with several --teacher-seeds an ensemble of it; with
--from-teacher, they also begin with what fits of the first teacher's parameters; with --rescore, those that write
several words at once are evaluated a second time, and that teacher chooses among their hypotheses. Results go to
WORK/results.jsonl, their tables to a .md file next to it (amlp-fairseq tables). Rows that have results on the same data
are not run again; a stopped training continues. Options of fairseq-train are for all trainings: ``--bf16`` is faster on
CPUs that multiply in it. On a CPU, jobs should have one thread each: OMP_NUM_THREADS=1. With several jobs, sentences
are decoded in batches and no latencies are stored, because the jobs slow each other down.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amlp_fairseq.compat.command_line import fairseqs_flags
from amlp_fairseq.compat.guarded_tasks import RECIPE
from amlp_fairseq.compat.internals import ARCH_MODEL_REGISTRY
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.recipes.beginning import write_fitted
from amlp_fairseq.recipes.config import Recipe, corpus_metric, load, names, quoted, read, tables
from amlp_fairseq.recipes.corpus import text_settings
from amlp_fairseq.recipes.distill import teachers_of
from amlp_fairseq.recipes.experiment import Experiment
from amlp_fairseq.recipes.failures import failed
from amlp_fairseq.recipes.results import data_sha256, read_results, same_data
from amlp_fairseq.recipes.tables import report
from amlp_fairseq.recipes.train import changes, has_ended
from amlp_fairseq.recipes.train import command as train_command
from amlp_fairseq.usage import add_device, among, command_parser, parse_with_fairseqs, positive, say_next, without

TARGETS = ("raw", "distilled")
TEACHER = "transformer"


class Reproduction:
    """All experiments on one corpus at one scale.

    Args:
        corpus: a name of configs/data.
        scale: a name of configs/scale.
        work: the folder for data and checkpoints.
        results: the file of results.
        rest: options for preparing the data (``--data DIR``).
        options: options for all of fairseq's programs, such as ``--cpu``.
        decoding: options for evaluating alone.
        training: options for training alone.
        from_teacher: whether models begin with what fits of the first teacher's parameters where they learn from it.
        teacher_seeds: those of the teachers whose ensemble writes the distilled data.
        rescore: whether the first teacher chooses among the hypotheses of models that learn from it, too.
    """

    def __init__(
        self,
        corpus: str,
        scale: str,
        work: Path,
        results: Path,
        rest: Sequence[str],
        options: Sequence[str],
        decoding: Sequence[str],
        training: Sequence[str] = (),
        from_teacher: bool = False,
        teacher_seeds: Sequence[int] = (1,),
        rescore: bool = False,
    ) -> None:
        self.corpus, self.scale, self.work, self.results = corpus, scale, work, results
        self.rest, self.options, self.decoding = rest, options, decoding
        self.training, self.from_teacher, self.teacher_seeds = training, from_teacher, teacher_seeds
        self.rescore = rescore

    def rows(self, table: str) -> list[str]:
        """The rows of a paper's tables."""
        recipes = [load(row, self.corpus, self.scale) for row in names("rows")]
        return [
            recipe.row for recipe in recipes if any(entry["table"].split()[0] == table for entry in recipe.published)
        ]

    def known(self) -> dict[Experiment, set[str]]:
        """The ways of decoding in which experiments have results on the test set of this data, with the same scale and
        options of training."""
        found: dict[Experiment, set[str]] = defaultdict(set)
        if self.results.exists():
            data = self.data(distilled=False)  # distilled data have the same test set and dictionaries
            checksum, name = data_sha256(data, "test"), text_settings(data, self.corpus)["name"]
            for line in read_results(self.results):
                experiment = Experiment.of(line)
                if (
                    line["split"] == "test"
                    and same_data(line, checksum, name)
                    and self.is_like(experiment, line.get("scale", ""), line.get("training_options", ""))
                ):
                    found[experiment].add(line["decoding"])
        return found

    def is_like(self, experiment: Experiment, scale: str, training_options: str) -> bool:
        """Whether a training at this scale with these options of the user's is the experiment's."""
        begins = ["--finetune-from-model", ""] if self.from_teacher and experiment.distilled else []
        expected = [*self.options, *self.training, *begins]
        return scale == self.scale and _apart(shlex.split(training_options)) == _apart(expected)

    def evaluations(self, experiment: Experiment, known: Set[str]) -> list[list[str]]:
        """The options of each evaluation that an experiment needs, where some ways of decoding have results."""
        recipe = load(experiment.row, self.corpus, self.scale)
        needed: list[tuple[Set[str], list[str]]] = [(recipe.generate.keys(), [])]
        if self.rescore and experiment.distilled:
            needed.append((recipe.rescored.keys(), ["--rescore-path", str(self.first_teacher)]))
        return [options for decodings, options in needed if not decodings <= known]

    def command(self, name: str, *words: object, log: str = "") -> None:
        """Run a command of amlp-fairseq; what it prints goes to the work folder.

        Raises:
            ChildProcessError: if it fails.
        """
        path = self.work / "logs" / f"{log or name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        words = (name, *words)
        print("+ amlp-fairseq", quoted(words), file=sys.stderr, flush=True)
        with path.open("a", encoding="utf-8") as file:
            command = [sys.executable, "-m", "amlp_fairseq", *map(str, words)]
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if status:
            printed = path.read_text(encoding="utf-8", errors="replace")
            raise failed(f"amlp-fairseq {quoted(words)}", status, printed, path)

    def data(self, distilled: bool) -> Path:
        """The folder of the data, which is made if it is missing.

        Raises:
            ValueError: if the distilled data are there, but of other teachers.
        """
        raw, out = self.work / "data/data-bin", self.work / "distilled"
        if not raw.exists():
            size = load(TEACHER, self.corpus, self.scale).vocab_size
            words = ["--vocab-size", size] if size else []
            self.command("prepare", self.corpus, self.work / "data", *words, *self.rest)
        if distilled and not out.exists():
            for experiment, checkpoint in self.teachers.items():
                if not checkpoint.exists():
                    self.run(experiment)
            self.command("distill", ":".join(map(str, self.teachers.values())), raw, out, *self.options)
        elif distilled and (made_by := teachers_of(out)) != [experiment.name for experiment in self.teachers]:
            seeds = " ".join(map(str, self.teacher_seeds))
            raise ValueError(f"--teacher-seeds {seeds}: {out} is by {', '.join(made_by)}; give another --work")
        return out if distilled else raw

    @property
    def first_teacher(self) -> Path:
        return next(iter(self.teachers.values()))

    @property
    def teachers(self) -> dict[Experiment, Path]:
        """Those whose translations are the distilled data, with their checkpoints."""
        experiments = [Experiment(TEACHER, distilled=False, seed=seed) for seed in self.teacher_seeds]
        return {experiment: self.work / experiment.name / "average.pt" for experiment in experiments}

    def beginning(self, recipe: Recipe, folder: Path, words: Sequence[str]) -> Path:
        """A checkpoint with those parameters of the first teacher that the model of a training with the arguments
        ``words`` has, too."""
        if is_ours(ARCH_MODEL_REGISTRY[recipe.train["arch"]]):
            return self.first_teacher
        path = folder / "beginning.pt"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_fitted(words, self.first_teacher, path)
        return path

    def run(self, experiment: Experiment, known: Set[str] = frozenset()) -> None:
        """Train, and evaluate unless the ways of decoding have results."""
        folder, data, log = self.work / experiment.name, self.data(experiment.distilled), experiment.name
        recipe = load(experiment.row, self.corpus, self.scale)
        begun = read(folder / RECIPE) if (folder / RECIPE).is_file() else None
        if begun and not self.is_like(experiment, begun.scale, begun.changes):
            raise ValueError(
                f"--work {self.work}: {experiment.name} was trained at --scale {begun.scale} with other options "
                f"({begun.changes or 'none'}): give another --work"
            )
        names = ["--row", experiment.row, "--scale", self.scale, "--corpus", self.corpus]
        options = ["--seed", str(experiment.seed), *self.options, *self.training]
        words = train_command(recipe, data, folder, options, os.environ)
        if not has_ended(words, folder):
            if self.from_teacher and experiment.distilled:
                options += ["--finetune-from-model", str(self.beginning(recipe, folder, words))]
            self.command("train", data, *names, "--save-dir", folder, *options, log=log)
        evaluation: list[object] = [folder, data, "--results", self.results, *self.options, *self.decoding]
        for choice in self.evaluations(experiment, known):
            self.command("evaluate", *evaluation, *choice, log=log)


def _apart(words: Sequence[str]) -> tuple[bool, str]:
    """Whether options of training have a model to begin with, and the others but the seed and the device."""
    beginning = "--finetune-from-model"
    return bool(among(words, [beginning])), changes(without(words, [beginning]))


def main() -> None:
    parser = command_parser("reproduce", __doc__)
    parser.add_argument("--corpus", choices=names("data"), required=True)
    parser.add_argument("--scale", choices=names("scale"), required=True)
    parser.add_argument("--table", choices=tables(), required=True)
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, help="default: both; of language models raw")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--jobs", type=positive, default=1, help="how many experiments to run at the same time")
    parser.add_argument("--data", type=Path, help="the corpus' text (default: it is downloaded)")
    parser.add_argument("--work", type=Path, help="for data and checkpoints (default: work/SCALE)")
    parser.add_argument("--results", type=Path, help="by default WORK/results.jsonl")
    add_device(parser, "cpu", "default: cpu", choices=("cpu", "cuda"))
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
        help="of the transformers that distilled rows learn from (default: 1)",
    )
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="evaluate distilled rows that write several words at once a second time: the first teacher chooses among "
        "their hypotheses (--rescore-path)",
    )
    args, training = parse_with_fairseqs(parser, accepted=lambda args: fairseqs_flags("training"))
    work = args.work or Path("work", args.scale)
    results = args.results or work / "results.jsonl"
    reproduction = Reproduction(
        args.corpus,
        args.scale,
        work,
        results.resolve(),
        ["--data", str(args.data)] if args.data else [],
        ["--cpu"] if args.device == "cpu" else ["--fp16"],
        ["--batch-size", "50"] if args.jobs > 1 else [],
        training,
        args.from_teacher,
        args.teacher_seeds,
        args.rescore,
    )
    rows = reproduction.rows(args.table)
    if not rows:
        parser.error(f"--table {args.table}: none of its rows is of what --corpus {args.corpus} is for")
    if unknown := set(args.rows or ()) - set(rows):
        parser.error(f"--rows {' '.join(sorted(unknown))}: choose from {' '.join(rows)}")
    language_models = corpus_metric(args.corpus) == "perplexity"
    if language_models and "distilled" in (args.targets or ()):
        parser.error(f"--targets distilled: {args.corpus} is for language models, which have no targets to distill")
    targets = args.targets or (["raw"] if language_models else TARGETS)
    experiments = [
        Experiment(row, distilled, seed)
        for seed in dict.fromkeys(args.seeds)
        for distilled in (target == "distilled" for target in targets)
        for row in (args.rows or rows)
    ]
    reproduction.data("distilled" in targets)
    known = reproduction.known()
    missing = [each for each in experiments if reproduction.evaluations(each, known[each])]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(reproduction.run, missing, [known[each] for each in missing]))
    results.with_suffix(".md").write_text(report(results), encoding="utf-8")
    say_next("report", results, "--out", "report.html")


if __name__ == "__main__":
    main()
