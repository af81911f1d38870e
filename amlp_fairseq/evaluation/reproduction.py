"""The experiments of a paper's tables on one corpus at one scale: what is trained on what, decoded, and left alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from amlp_fairseq.common.arguments import among, say_next_line, split_options, without
from amlp_fairseq.common.subprocesses import failed
from amlp_fairseq.common.training_folder import RECIPE, diverged
from amlp_fairseq.compat.internals import ARCH_MODEL_REGISTRY
from amlp_fairseq.compat.registration import is_ours
from amlp_fairseq.evaluation.experiment import Experiment
from amlp_fairseq.evaluation.tables import report
from amlp_fairseq.model_folder.as_checkpoint import AVERAGE
from amlp_fairseq.training.config import (
    PAPER,
    SPLITS,
    Recipe,
    corpus_metric,
    load,
    names,
    paper_of,
    paper_variant,
    quoted,
    read,
    row_tables,
)
from amlp_fairseq.training.data_folder import stored_text, text_settings
from amlp_fairseq.training.distill import teachers_of
from amlp_fairseq.training.results import PERPLEXITY, data_sha256, read_results, same_data
from amlp_fairseq.training.train import changes, has_ended, update_frequency
from amlp_fairseq.training.train import command as train_command
from amlp_fairseq.training.warm_start import write_fitted

TARGETS = ("raw", "distilled")
TEACHER = "transformer"
#: A split and a way of decoding in which an experiment has a result.
Known = tuple[str, str]


@dataclass
class Reproduction:
    """All experiments on one corpus at one scale.

    Attributes:
        corpus: a name of configs/data.
        scale: a name of configs/scale.
        work: the folder for data and checkpoints.
        results: the file of results.
        table: the table, or the paper, whose rows are run.
        seeds: those of the experiments.
        rest: options for preparing the data (``--data DIR``).
        options: options for all of fairseq's programs, such as ``--cpu``.
        decoding: options for evaluating alone.
        training: options for training alone.
        from_teacher: whether models begin with what fits of the first teacher's parameters where they learn from it.
        teacher_seeds: those of the teachers whose ensemble writes the distilled data.
        rescore: whether the first teacher reranks the hypotheses of models that learn from it, too.
        dry_run: whether commands are printed and not run.
    """

    corpus: str
    scale: str
    work: Path
    results: Path
    table: str
    seeds: Sequence[int] = (1,)
    rest: Sequence[str] = ()
    options: Sequence[str] = ()
    decoding: Sequence[str] = ()
    training: Sequence[str] = ()
    from_teacher: bool = False
    teacher_seeds: Sequence[int] = (1,)
    rescore: bool = False
    dry_run: bool = False
    #: Files that a dry run would have made.
    made: set[Path] = field(default_factory=set)

    def entries(self, recipe: Recipe) -> list[dict[str, Any]]:
        """Where a row is in the tables, at the scale of the papers in those of this corpus."""
        return [
            entry
            for entry in recipe.published
            if self.table in (entry["table"], paper_of(entry["table"]))
            and (self.scale != PAPER or entry["data"] == self.corpus)
        ]

    def rows(self) -> list[str]:
        """The rows of the tables."""
        rows = [row for row in names("rows") if self.table in {*row_tables(row), *map(paper_of, row_tables(row))}]
        recipes = [load(row, self.corpus, self.scale) for row in rows]
        return [recipe.row for recipe in recipes if self.entries(recipe)]

    def targets(self, row: str) -> Sequence[str]:
        """Data of a row where the user does not name them: of language models raw text; at the scale of the
        papers what the tables have numbers of, and raw text if they have none; else both."""
        if corpus_metric(self.corpus) == "perplexity":
            return TARGETS[:1]
        if self.scale != PAPER:
            return TARGETS
        entries = self.entries(load(row, self.corpus, self.scale))
        distilled = any("distilled" in entry for entry in entries)
        raw = not distilled or any({"bleu", "rouge", "perplexity"} & entry.keys() for entry in entries)
        return [name for name, has in zip(TARGETS, (raw, distilled), strict=True) if has]

    def splits(self, recipe: Recipe) -> list[str]:
        """The subsets that are decoded: the test set, and the validation set at the scale of the papers, if a table is
        of it, or if it chooses a seed."""
        valid = self.scale == PAPER or any(entry.get("split") == "valid" for entry in self.entries(recipe))
        valid |= recipe.best_seed and len(set(self.seeds)) > 1
        return [name for name in SPLITS if name == "test" or valid]

    def needs_alignments(self, row: str) -> bool:
        """True if a row learns from alignments."""
        return bool(load(row, self.corpus, self.scale).train.get("load-alignments"))

    def known(self) -> dict[Experiment, set[Known]]:
        """The splits and ways of decoding in which experiments have results on this data, with the same scale and
        options of training."""
        found: dict[Experiment, set[Known]] = defaultdict(set)
        data = self.work / "data/data-bin"
        if self.results.exists() and data.exists():
            # distilled data have the same sets and dictionaries
            checksums, name = {s: data_sha256(data, s) for s in SPLITS}, text_settings(data, self.corpus)["name"]
            for line in read_results(self.results):
                experiment = Experiment.of(line)
                if same_data(line, checksums[line["split"]], name) and self.is_like(
                    experiment, line.get("scale", ""), line.get("training_options", "")
                ):
                    found[experiment].add((line["split"], line["decoding"]))
        return found

    def is_like(self, experiment: Experiment, scale: str, training_options: str) -> bool:
        """True if a training at this scale with these options of the user's is the experiment's."""
        begins = ["--finetune-from-model", ""] if self.from_teacher and experiment.distilled else []
        expected = [*self.options, *self.training, *begins]
        return scale == self.scale and _apart(shlex.split(training_options)) == _apart(expected)

    def evaluations(self, experiment: Experiment, known: Set[Known]) -> list[list[str]]:
        """The options of each evaluation that an experiment needs, where some ways of decoding have results."""
        recipe = load(experiment.row, self.corpus, self.scale)
        needed: list[tuple[Set[str], list[str]]] = [(recipe.generate.keys(), [])]
        if self.rescore and experiment.distilled:
            needed.append((recipe.rescored.keys(), ["--rescore-path", str(self.first_teacher)]))
        found = []
        for decodings, options in needed:
            splits = [s for s in self.splits(recipe) if not {(s, each) for each in decodings} <= known]
            if splits and decodings:
                found.append([*(["--subset", ",".join(splits)] if splits != ["test"] else []), *options])
        return found

    def command(self, name: str, *words: object, log: str = "") -> None:
        """Run a command of amlp-fairseq; what it prints goes to the work folder.

        Raises:
            ChildProcessError: if it fails.
        """
        words = (name, *words)
        if self.dry_run:
            print(quoted(["amlp-fairseq", *words]))
            return
        path = self.work / "logs" / f"{log or name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        print("+ amlp-fairseq", quoted(words), file=sys.stderr, flush=True)
        with path.open("a", encoding="utf-8") as file:
            command = [sys.executable, "-m", "amlp_fairseq", *map(str, words)]
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if status:
            printed = path.read_text(encoding="utf-8", errors="replace")
            raise failed(f"amlp-fairseq {quoted(words)}", status, printed, path)

    def is_new(self, path: Path) -> bool:
        """True if a file or folder is to be made, which it is from then on."""
        new = path not in self.made and not path.exists()
        self.made.add(path)
        return new

    def data(self, distilled: bool, aligned: bool = False) -> Path:
        """The folder of the data, which is made if it is missing.

        Raises:
            ValueError: if they are there, but of another corpus, or the distilled data of other teachers.
        """
        raw, out = self.work / "data/data-bin", self.work / "distilled"
        variant = paper_variant(self.corpus, self.table)
        if self.is_new(raw):
            size = load(TEACHER, self.corpus, self.scale).vocab_size
            words = [*(["--variant", variant] if variant else []), *(["--vocab-size", size] if size else [])]
            self.command("prepare", self.corpus, self.work / "data", *words, *self.rest)
        elif (text := stored_text(raw)) and (text["corpus"], text.get("variant", "")) != (self.corpus, variant):
            wanted, there = (
                f"{corpus}{kind and f' --variant {kind}'}"
                for corpus, kind in ((self.corpus, variant), (text["corpus"] or text["name"], text.get("variant", "")))
            )
            raise ValueError(
                f"--work {self.work}: {raw} is of {there}, --corpus {self.corpus} --table {self.table} needs {wanted}: "
                "give another --work"
            )
        if distilled and self.is_new(out):
            for experiment, checkpoint in self.teachers.items():
                if checkpoint not in self.made and not checkpoint.exists():
                    self.run(experiment)
            self.command("distill", ":".join(map(str, self.teachers.values())), raw, out, *self.options)
        elif distilled and out.exists() and (by := teachers_of(out)) != [teacher.name for teacher in self.teachers]:
            seeds = " ".join(map(str, self.teacher_seeds))
            raise ValueError(f"--teacher-seeds {seeds}: {out} is by {', '.join(by)}; give another --work")
        data = out if distilled else raw
        if aligned:
            data, alone = self.work / f"aligned{'-distilled' * distilled}", data
            if self.is_new(data):
                self.command("align", alone, data)
        return data

    @property
    def first_teacher(self) -> Path:
        return next(iter(self.teachers.values()))

    @property
    def teachers(self) -> dict[Experiment, Path]:
        """The teachers whose translations are the distilled data, with their checkpoints."""
        experiments = [Experiment(TEACHER, distilled=False, seed=seed) for seed in self.teacher_seeds]
        return {experiment: self.average(experiment) for experiment in experiments}

    def average(self, experiment: Experiment) -> Path:
        """The checkpoint that an evaluation leaves."""
        return self.work / experiment.name / AVERAGE

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

    def run(self, experiment: Experiment, known: Set[Known] = frozenset()) -> None:
        """Train, and evaluate unless the ways of decoding have results."""
        folder, log = self.work / experiment.name, experiment.name
        recipe = load(experiment.row, self.corpus, self.scale)
        data = self.data(experiment.distilled, self.needs_alignments(experiment.row))
        begun = read(folder / RECIPE) if (folder / RECIPE).is_file() else None
        if begun and not self.is_like(experiment, begun.scale, begun.changes):
            raise ValueError(
                f"--work {self.work}: {experiment.name} was trained at --scale {begun.scale} with other options "
                f"({begun.changes or 'none'}): give another --work"
            )
        names = ["--row", experiment.row, "--scale", self.scale, "--corpus", self.corpus]
        options = ["--seed", str(experiment.seed), *self.options, *self.training]
        words = train_command(recipe, data, folder, options, os.environ)
        if not has_ended(words, folder) and diverged(folder) is None:
            if self.from_teacher and experiment.distilled:
                options += ["--finetune-from-model", str(self.beginning(recipe, folder, words))]
            self.say(training_size(recipe, words))
            try:
                self.command("train", data, *names, "--save-dir", folder, *options, log=log)
            except ChildProcessError:
                if diverged(folder) is None:
                    raise
                print(f"reproduce: {experiment.name} diverges, which is its result", file=sys.stderr)
        evaluation: list[object] = [folder, data, "--results", self.results, *self.options, *self.decoding]
        for choice in self.evaluations(experiment, known):
            self.say(evaluation_size(recipe))
            self.command("evaluate", *evaluation, *choice, log=log)
        if self.dry_run:
            self.made.add(self.average(experiment))

    def say(self, text: str) -> None:
        """Explain the next command of a dry run."""
        if self.dry_run:
            print("#", text)

    def compare(self, rows: Sequence[str], known: dict[Experiment, set[Known]]) -> None:
        """Name the command that estimates how much words that are predicted together depend on each other, where a
        table has that."""
        for row in rows:
            entries = self.entries(load(row, self.corpus, self.scale))
            for other, seed in product([entry["against"] for entry in entries if "against" in entry], self.seeds):
                pair = [Experiment(each, distilled=False, seed=seed) for each in (other, row)]
                paths = [self.average(experiment) for experiment in pair]
                compared = all(("test", PERPLEXITY) in known[experiment] for experiment in pair)
                if not compared and all(path in self.made or path.exists() for path in paths):
                    data = self.data(distilled=False)
                    words = ["python", "examples/word_dependence/pmi.py", data, *paths, "--results", self.results]
                    words += self.options
                    if self.dry_run:
                        self.say(f"PMI, in a checkout: {quoted(words)}")
                    else:
                        say_next_line(quoted(words))

    def write_tables(self) -> None:
        """Write the tables of the results beside them."""
        path = self.results.with_suffix(".md")
        if self.dry_run:
            print(quoted(["amlp-fairseq", "tables", self.results]), ">", quoted([path]))
        elif self.results.exists():
            path.write_text(report(self.results), encoding="utf-8")


def training_size(recipe: Recipe, words: Sequence[str]) -> str:
    """The number of updates of a training with these arguments, and their size on one and on eight GPUs."""
    given, _ = split_options(words, {"--max-update": int, "--max-tokens": int})
    if recipe.tokens_per_update is None:
        return f"{given.max_update} updates of at most {given.max_tokens} tokens"
    sizes = []
    for gpus, name in ((1, "one GPU"), (8, "eight")):
        batches = update_frequency(recipe.tokens_per_update, gpus, given.max_tokens)
        sizes.append(f"--update-freq {batches} on {name}, {gpus * batches * given.max_tokens} tokens")
    return f"{given.max_update} updates, in the paper of {recipe.tokens_per_update} tokens: {'; '.join(sizes)}"


def evaluation_size(recipe: Recipe) -> str:
    """The options of an evaluation that say what it averages and tunes."""
    counts: list[Any] = [count for _, count in recipe.averages]
    choices = {
        f"the average of checkpoints, --{recipe.averages[0][0]}": counts,
        "--lenpen": recipe.tune_lenpen,
        "--max-len-b": recipe.tune_max_len,
    }
    return "; ".join(
        f"{name} {' or '.join([str(each) for each in values])}" for name, values in choices.items() if values
    )


def _apart(words: Sequence[str]) -> tuple[bool, str]:
    """True if options of training have a model to begin with, and the others but the seed and the device."""
    beginning = "--finetune-from-model"
    return bool(among(words, [beginning])), changes(without(words, [beginning]))
