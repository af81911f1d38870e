"""Average the checkpoints of a training, decode a test set in all configured ways, and store the results.

    amlp-fairseq evaluate CHECKPOINTS DATA [--subset S[,S]] [--results FILE] [options of fairseq-generate]

CHECKPOINTS is the folder that ``amlp-fairseq train --row`` wrote (for one of fairseq-train, give --row and --scale),
DATA one of ``amlp-fairseq prepare``, which has raw references and says how text was tokenised. For each way of decoding
and each set a line of JSON is appended to the results file and printed, on a terminal as a row of a table; outputs stay
in CHECKPOINTS, those named .hyp in the order of the set.
If the configuration has several length penalties for its beam searches (``tune-lenpen``), longest outputs
(``tune-max-len``) or numbers of checkpoints to average, those with the highest BLEU on the validation set are taken, of
summaries the highest ROUGE-L: the ``metric`` of the corpus. The recipe in CHECKPOINTS then has them, for ``amlp-fairseq
package``; an option that is given is not tuned. With --rescore-path AR, the ways of decoding are those of the
configuration's section ``rescored``, in which that model chooses. Sentences are decoded one at a time, so that times
are latencies; with options like ``--batch-size 32`` no times are stored. The plugin's search decodes all systems; with
--engine fairseq, fairseq's own decodes autoregressive ones: the same words, more slowly. Of language models the
perplexity per word is taken, by fairseq-eval-lm, whose options are the ones that may be given.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from amlp_fairseq.common.arguments import among, command_parser, flags_of, parse_with_fairseqs, say_next, without
from amlp_fairseq.common.files import hold
from amlp_fairseq.common.metrics import METRICS, metric_of
from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.common.subprocesses import failed, watching
from amlp_fairseq.common.training_folder import CRASH, LAST, RECIPE, diverged
from amlp_fairseq.compat.flags import fairseqs_flags, known_flags
from amlp_fairseq.evaluation.kytea import segmenter
from amlp_fairseq.evaluation.perplexity import perplexity
from amlp_fairseq.evaluation.rouge import scorer
from amlp_fairseq.evaluation.score import costs, describe, hypotheses_of, score
from amlp_fairseq.model_folder.as_checkpoint import AVERAGE
from amlp_fairseq.text.bleu import bleu_of
from amlp_fairseq.training.average import average_checkpoints, chosen, save
from amlp_fairseq.training.binarised_shards import ELSEWHERE
from amlp_fairseq.training.config import SPLITS, Recipe, flags, quoted, read
from amlp_fairseq.training.config import save as save_recipe
from amlp_fairseq.training.data_folder import chosen_recipe, data_folder, recipe_arguments, text_settings
from amlp_fairseq.training.engine import (
    FAIRSEQS,
    OURS,
    check_options,
    engine_argument,
    engine_of_task,
    given_task,
    task_flags,
)
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.following import say_package
from amlp_fairseq.training.results import append_results, facts, in_columns


class Evaluation:
    """One training on one data folder.

    Args:
        recipe: its configuration.
        folder: its checkpoints; averages and outputs are written there.
        data: the data folder.
        text: its text.json.
        rest: options of fairseq-generate that win over the configuration's.
        arch: the architecture of the checkpoints.
        engine: of ``engine.ENGINES``.

    Raises:
        ValueError: if the engine cannot decode the model or does not have an option, or a library is missing.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, data: Path, text: dict[str, Any], rest: list[str], arch: str, engine: str
    ) -> None:
        self.recipe, self.folder, self.data, self.text, self.rest = recipe, folder, data, text, rest
        self.given = {*flags_of(rest)}
        self.averaged: tuple[str, int] | None = None
        self.source, self.target = (recipe.task.get(f"{side}-lang", "") for side in ("source", "target"))
        self.metric = METRICS[recipe.metric]
        if recipe.metric == "rouge":
            scorer()  # what is missing is said before anything is decoded
        elif recipe.metric == "kytea":
            segmenter()
        elif recipe.metric == "bleu":
            bleu_of(self.target)
        self.choose_engine(arch, engine)

    def choose_engine(self, arch: str, engine: str) -> None:
        """Set ``task``, the flags of the task that decodes, and ``engine``, the one whose task that is; a --task that
        is given wins."""
        given = given_task(self.rest)
        self.task = self.recipe.task
        if given is None and engine_of_task(self.task["task"]) != engine:
            self.task = task_flags(self.task, arch, engine)
        self.engine = engine_of_task(given or self.task["task"])
        check_options(self.rest, given or self.task["task"])

    @property
    def decodings(self) -> dict[str, dict[str, Any]]:
        """The recipe's ways of decoding: with --rescore-path those with several hypotheses to rerank."""
        if "--rescore-path" not in self.given:
            return self.recipe.generate
        if not self.recipe.rescored:
            raise ValueError(
                f"--rescore-path: the configuration of {self.recipe.row} has no section rescored; if it has got one "
                "since the training, give --row and --scale"
            )
        return self.recipe.rescored

    def named(self, way: str) -> str:
        """A way of decoding, with fairseq's engine if that decodes, and the given options that change what is found,
        not how fast or where; --rescore-path has ways of its own."""
        if self.engine == FAIRSEQS:
            way = f"{way}, fairseq's search"
        sizes = ["--batch-size", "--max-sentences", "--max-tokens", "--num-workers"]
        changes = without(self.rest, [*sizes, "--rescore-path"], ["--cpu", "--fp16"])
        return f"{way}, {quoted(changes)}" if changes else way

    def average(self, kind: str, count: int) -> tuple[str, int]:
        """Write ``average.pt``, the average of these checkpoints, or of all if there are fewer; returns which."""
        found = chosen(self.folder, kind, count)
        if len(found) < count:
            print(f"evaluate: {self.folder} has {len(found)} checkpoints to average, not {count}", file=sys.stderr)
        if self.averaged != (kind, len(found)):
            save(average_checkpoints(found), self.folder / AVERAGE)
            self.averaged = kind, len(found)
        return self.averaged

    def output(self, subset: str, way: str) -> Path:
        """The file for what is printed of a subset in a way of decoding."""
        return self.folder / f"generated.{subset}.{way}.txt".replace(", ", ".").replace(" ", "-")

    def generate(self, subset: str, values: dict[str, Any], output: Path, *more: str) -> str:
        """The output of fairseq-generate for a subset; also written to a file."""
        words = [
            *(sys.executable, "-m", "amlp_fairseq", "generate"),
            str(self.data),
            *flags(self.task, self.recipe.row),
        ]
        words += ["--path", str(self.folder / AVERAGE), "--gen-subset", subset, *flags(values, self.recipe.row)]
        words += ["--required-batch-size-multiple", "1", *(["--print-step"] if self.engine == OURS else []), *more]
        if self.text["post_process"]:
            words += ["--post-process", self.text["post_process"]]
        if self.text["tokenizer"]:
            words += ["--tokenizer", self.text["tokenizer"], "-s", self.source, "-t", self.target]
        words += self.rest
        print("+", quoted(words), file=sys.stderr, flush=True)
        sentences = len(self.references(subset))
        with output.open("w", encoding="utf-8") as file, watching(f"evaluate: {output.name}", [output], sentences):
            done = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT)
        printed = output.read_bytes().decode("utf-8")
        if done.returncode:
            raise failed("fairseq-generate", done.returncode, printed, output)
        return printed

    def scored(self, subset: str, printed: str) -> dict[str, Any]:
        references = self.references(subset)
        hypotheses = hypotheses_of(printed, len(references))
        scores = score(hypotheses, [references], self.target, self.recipe.metric)
        return scores | costs(printed, word_by_word=self.engine == FAIRSEQS)

    def tried(self, subset: str, values: dict[str, Any], output: Path) -> dict[str, Any]:
        """The scores of a way of decoding, as fast as they can be had."""
        return self.scored(subset, self.generate(subset, values, output, "--max-tokens", "4000"))

    def measured(self, subset: str, values: dict[str, Any], output: Path) -> dict[str, Any]:
        """The scores of a way of decoding and its latency; the hypotheses are written to a file."""
        batched = self.given & {"--batch-size", "--max-sentences", "--max-tokens"}
        printed = self.generate(subset, values, output, *([] if batched else ["--batch-size", "1"]))
        scores = self.scored(subset, printed)
        hypotheses = hypotheses_of(printed, scores["sentences"])
        output.with_suffix(".hyp").write_text("".join(line + "\n" for line in hypotheses), encoding="utf-8")
        if batched:
            scores.pop("milliseconds_per_sentence", None)  # not a latency
        return scores

    def references(self, subset: str) -> list[str]:
        return read_references(self.data / "raw" / f"{subset}.{self.target}")

    def tuned(self, name: str, options: dict[str, Any]) -> tuple[tuple[str, int], dict[str, Any]]:
        """The average and the options of a way of decoding; of several the best on the validation set."""
        penalties = self.recipe.tune_lenpen if options.get("beam", 1) > 1 else []  # one hypothesis wins with any
        several: dict[str, list[Any]] = {"lenpen": penalties, "max-len-b": self.recipe.tune_max_len}
        tuned = {option: values for option, values in several.items() if values and f"--{option}" not in self.given}
        choices = [dict(zip(tuned, values, strict=True)) for values in product(*tuned.values())]
        candidates = list(product(self.recipe.averages, choices))
        if len(candidates) == 1:
            return candidates[0][0], options | candidates[0][1]
        scores = []
        for (kind, count), choice in candidates:
            self.average(kind, count)
            values = options | choice
            tried = ", ".join([name, f"{kind} {count}", *(f"{option} {value}" for option, value in choice.items())])
            scores.append(self.tried("valid", values, self.output("valid", tried))[self.metric.main])
            print(f"{tried}: {scores[-1]} {self.metric.column} on the validation set", file=sys.stderr)
        average, choice = candidates[scores.index(self.metric.best(scores))]
        return average, options | choice

    def results(self, subsets: Sequence[str]) -> list[dict[str, Any]]:
        """A result for each way of decoding and each set; the recipe then has the options that were the best."""
        found = []
        decodings = self.decodings
        for name, options in decodings.items():
            average, values = self.tuned(name, options)
            decodings[name] = values
            averaged = self.average(*average)
            for subset in subsets:
                scores = self.measured(subset, values, self.output(subset, name))
                made = {
                    **({"engine": self.engine} if self.engine else {}),
                    "average": dict([averaged]),
                    "options": quoted([*flags(values, self.recipe.row), *self.rest]),
                }
                found.append(self.facts(subset, name) | made | scores | environment())
        return found

    def without_scores(self, subsets: Sequence[str]) -> list[dict[str, Any]]:
        """The results of a training that has diverged."""
        pairs = product(self.decodings, subsets)
        return [self.facts(subset, name) | {"diverges": True} | environment() for name, subset in pairs]

    def facts(self, subset: str, way: str) -> dict[str, Any]:
        """The experiment of a result."""
        return facts(self.recipe, self.data, self.text, subset, self.named(way))


class LanguageModelEvaluation(Evaluation):
    """One training of a language model on one data folder."""

    def choose_engine(self, arch: str, engine: str) -> None:
        self.task, self.engine = self.recipe.task, ""  # nothing is searched for

    def measured(self, subset: str, values: dict[str, Any], output: Path) -> dict[str, Any]:
        """Perplexity per word, by fairseq-eval-lm."""
        words = [sys.executable, "-m", "amlp_fairseq", "eval-lm", str(self.data)]
        words += [*flags(self.recipe.task, self.recipe.row), "--path", str(self.folder / AVERAGE)]
        words += ["--gen-subset", subset, *flags(values, self.recipe.row), *self.rest]
        print("+", quoted(words), file=sys.stderr, flush=True)
        with output.open("w", encoding="utf-8") as file:
            done = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT)
        printed = output.read_bytes().decode("utf-8")
        if done.returncode:
            raise failed("fairseq-eval-lm", done.returncode, printed, output)
        return perplexity(printed, self.data, subset)

    tried = measured


def main() -> None:
    parser = command_parser("evaluate", __doc__)
    parser.add_argument("checkpoints", metavar="CHECKPOINTS", type=Path, help="the folder of the checkpoints")
    parser.add_argument("data", metavar="DATA", type=data_folder, help="a folder of amlp-fairseq prepare")
    recipe_arguments(parser, required=False)
    parser.add_argument("--subset", default="test", metavar="S[,S]", help="sets to decode: valid, test or valid,test")
    parser.add_argument("--results", type=Path, help="by default CHECKPOINTS/results.jsonl")
    engine_argument(parser)
    args, rest = parse_with_fairseqs(
        parser,
        known_flags,
        accepted=lambda args: fairseqs_flags("generation") - ELSEWHERE,
        forward_device=True,
    )
    if args.checkpoints.name == AVERAGE:  # as other commands take it
        args.checkpoints = args.checkpoints.parent
    if not args.checkpoints.is_dir():
        raise ValueError(f"CHECKPOINTS {args.checkpoints}: there is no such folder")
    subsets = args.subset.split(",")
    if not {*subsets} <= {*SPLITS}:
        raise ValueError(f"--subset {args.subset}: give {', '.join(SPLITS)}, or both, joined by a comma")
    text = text_settings(args.data, args.corpus)
    if "post_process" not in text:
        raise ValueError(
            f"DATA {args.data} is of fairseq-preprocess, without references as they were written: amlp-fairseq prepare "
            "text makes a folder that has them; or decode with amlp-fairseq generate, and score with amlp-fairseq score"
        )
    if bool(args.row) != bool(args.scale):
        raise ValueError("--row and --scale go together")
    if args.row:
        recipe = chosen_recipe(args.row, args.scale, text)
    elif (args.checkpoints / RECIPE).is_file():
        recipe = read(args.checkpoints / RECIPE)
    else:
        raise ValueError(f"CHECKPOINTS {args.checkpoints} has no {RECIPE}: give --row and --scale")
    updates = diverged(args.checkpoints)
    last = args.checkpoints / (LAST if updates is None else CRASH)
    if not last.is_file():
        raise ValueError(f"CHECKPOINTS {args.checkpoints} has no {last.name}")
    if refused := among(rest, ELSEWHERE):
        raise ValueError(f"{', '.join(refused)} cannot be given: --subset says what is decoded")
    hold(args.checkpoints / ".evaluation.lock", f"CHECKPOINTS {args.checkpoints}: another evaluation writes there")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(last))
    arch, trained_on = state["cfg"].model._name, Path(state["cfg"].task.data)
    model = describe(state, last, args.data)
    del state  # not while other processes decode
    kind = LanguageModelEvaluation if recipe.metric == "perplexity" else Evaluation
    evaluation = kind(recipe, args.checkpoints, args.data, text, rest, arch, args.engine)
    results = evaluation.results(subsets) if updates is None else evaluation.without_scores(subsets)
    if not args.row and updates is None:
        save_recipe(recipe, args.checkpoints / RECIPE)
    lines = [result | model for result in results]
    stored = args.results or args.checkpoints / "results.jsonl"
    try:
        append_results(stored, lines)
    finally:
        if sys.stdout.isatty():
            print(table(lines))
        else:
            for line in lines:
                print(json.dumps(line, ensure_ascii=False))
    if recipe.metric == "perplexity" or updates is not None:  # nothing that translates
        say_next("tables", stored)
    else:
        out = args.checkpoints.with_name(f"{args.checkpoints.name}-model")
        say_package(args.checkpoints, out, trained_on, args.data)


def table(lines: list[dict[str, Any]]) -> str:
    """Results for people: how good and how fast each way of decoding is."""
    measured = {
        **METRICS[metric_of({*chain.from_iterable(lines)})].columns,
        "calls": "steps_per_sentence",
        "ms/sentence": "milliseconds_per_sentence",
    }
    measured = {name: field for name, field in measured.items() if any(field in line for line in lines)}
    columns = ["configuration", "targets", "decoding", "split", *measured]
    rows = [
        [
            line["system"] + " (diverges)" * ("diverges" in line),
            "distilled" if line["distilled"] else "raw",
            line["decoding"],
            line["split"],
            *(f"{line[name]:.2f}" if name in line else "" for name in measured.values()),
        ]
        for line in lines
    ]
    return in_columns(columns, rows)


if __name__ == "__main__":
    main()
