"""Average checkpoints of a configuration, decode a test set in each of its ways, and store what comes out.

    bash scripts/evaluate.sh CONFIG CHECKPOINTS DATA [--subset S] [--results FILE] [options of fairseq-generate]

CHECKPOINTS is the folder that scripts/train.sh wrote, DATA one of scripts/prepare_*.sh, which has raw references and
says how text was tokenised. A line of JSON is appended to the results file (default docs/results/<dataset>.jsonl) for
each way of decoding; outputs stay in CHECKPOINTS, those named .hyp in the order of the set. Where the configuration has
several length penalties (``tune-lenpen``) or numbers of checkpoints to average (``average: {tune: …}``), the pair with
the highest BLEU on the validation set is taken. Sentences are decoded one at a time, so that times are latencies; with
``--batch-size 32`` and the like no times are stored.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

from recipe import PLUGIN, SPLITS, Recipe, flags, load, quoted
from score import describe, environment, hypotheses_of, read_references, score

RESULTS = Path(__file__).parent.parent / "docs/results"


def text_settings(data: Path) -> dict[str, Any]:
    """``text.json`` of a data folder: languages, post_process, tokenizer, names of the evaluation sets.

    Raises:
        ValueError: if the folder has none.
    """
    path = data / "text.json"
    if not path.is_file():
        raise ValueError(f"DATA {data} has no text.json, which scripts/prepare_*.sh write")
    return dict(json.loads(path.read_text(encoding="utf-8")))


class Evaluation:
    """One training on one data folder.

    Args:
        recipe: its configuration.
        folder: its checkpoints; averages and outputs are written there.
        data: the data folder.
        rest: options of fairseq-generate that win over the configuration's.
    """

    def __init__(self, recipe: Recipe, folder: Path, data: Path, rest: list[str]) -> None:
        self.recipe, self.folder, self.data, self.rest = recipe, folder, data, rest
        self.averaged: tuple[str, int] | None = None
        self.text = text_settings(data)
        languages = self.text["languages"]
        self.source = recipe.task.get("source-lang", languages[0])
        self.target = recipe.task.get("target-lang", languages[1])

    def average(self, kind: str, count: int) -> None:
        """Make ``average.pt`` the average of these checkpoints."""
        if self.averaged == (kind, count):
            return
        words = ["amlp-average-checkpoints", "--inputs", str(self.folder), f"--{kind}", str(count)]
        words += ["--output", str(self.folder / "average.pt")]
        print("+", quoted(words), file=sys.stderr, flush=True)
        if status := subprocess.run(words).returncode:
            raise RuntimeError(f"amlp-average-checkpoints: status {status}")
        self.averaged = (kind, count)

    def generate(self, subset: str, values: dict[str, Any], output: Path, *more: str) -> str:
        """What fairseq-generate prints for a subset; also written to a file."""
        words = [
            "fairseq-generate",
            str(self.data),
            "--user-dir",
            str(PLUGIN),
            *flags(self.recipe.task, self.recipe.path),
        ]
        words += ["--path", str(self.folder / "average.pt"), "--gen-subset", subset, *flags(values, self.recipe.path)]
        words += ["--required-batch-size-multiple", "1", *more]
        if self.text["post_process"]:
            words += ["--post-process", self.text["post_process"]]
        if self.text["tokenizer"]:
            words += ["--tokenizer", self.text["tokenizer"], "-s", self.source, "-t", self.target]
        words += self.rest
        print("+", quoted(words), file=sys.stderr, flush=True)
        with output.open("w", encoding="utf-8") as file:
            done = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT)
        printed = output.read_bytes().decode("utf-8")
        if done.returncode:
            raise RuntimeError(f"fairseq-generate: status {done.returncode}, see {output}\n{printed[-1000:]}")
        return printed

    def scored(self, subset: str, printed: str) -> dict[str, Any]:
        references = read_references(self.data / "raw" / f"{subset}.{self.target}")
        return score(printed, references, self.target)

    def tuned(self, name: str, options: dict[str, Any]) -> tuple[tuple[str, int], dict[str, Any]]:
        """The average and the options of a way of decoding; of several pairs the best on the validation set."""
        tuned = [options | {"lenpen": penalty} for penalty in self.recipe.tune_lenpen]
        candidates = list(product(self.recipe.averages, tuned or [options]))
        if len(candidates) == 1:
            return candidates[0]
        scores = []
        for (kind, count), values in candidates:
            self.average(kind, count)
            tried = f"{name}, {kind} {count}" + (f", lenpen {values['lenpen']}" if tuned else "")
            output = self.folder / f"generated.valid.{tried}.txt".replace(", ", ".").replace(" ", "-")
            printed = self.generate("valid", values, output, "--max-tokens", "4000")
            scores.append(self.scored("valid", printed)["bleu"])
            print(f"{tried}: {scores[-1]} BLEU on the validation set", file=sys.stderr)
        return candidates[scores.index(max(scores))]

    def results(self, subset: str) -> list[dict[str, Any]]:
        """A result for each way of decoding."""
        found = []
        for name, options in self.recipe.generate.items():
            average, values = self.tuned(name, options)
            self.average(*average)
            output = self.folder / f"generated.{subset}.{name}.txt".replace(" ", "-")
            printed = self.generate(subset, values, output, "--batch-size", "1")
            scores = self.scored(subset, printed)
            hypotheses = hypotheses_of(printed, scores["sentences"])
            output.with_suffix(".hyp").write_text("".join(line + "\n" for line in hypotheses), encoding="utf-8")
            facts = {
                "dataset": self.recipe.dataset,
                "system": self.recipe.row,
                "distilled": (self.data / "manifest.json").is_file(),
                "split": subset,
                "subset": self.text[f"{subset}_set"],
                "decoding": name,
                "average": dict([average]),
                "options": quoted([*flags(values, self.recipe.path), *self.rest]),
            }
            if {word.split("=")[0] for word in self.rest} & {"--batch-size", "--max-sentences", "--max-tokens"}:
                scores.pop("milliseconds_per_sentence", None)  # not a latency
            found.append(facts | scores | environment())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="evaluate.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("config", type=Path, help="configs/<dataset>/<row>.yaml")
    parser.add_argument("checkpoints", type=Path, help="the folder of the checkpoints")
    parser.add_argument("data", type=Path, help="a folder of scripts/prepare_*.sh")
    parser.add_argument("--subset", choices=SPLITS, default="test", help="what to decode")
    parser.add_argument("--results", type=Path, help="by default docs/results/<dataset>.jsonl")
    args, rest = parser.parse_known_args()
    try:
        recipe = load(args.config)
        if not args.checkpoints.is_dir():
            raise ValueError(f"CHECKPOINTS {args.checkpoints}: there is no such folder")
        results = Evaluation(recipe, args.checkpoints, args.data, rest).results(args.subset)
        model = describe(args.checkpoints / "checkpoint_last.pt")
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"evaluate: {error}")
    results_file = args.results or RESULTS / f"{recipe.dataset}.jsonl"
    with results_file.open("a", encoding="utf-8") as file:
        for result in results:
            line = json.dumps(result | model, ensure_ascii=False)
            file.write(line + "\n")
            print(line)


if __name__ == "__main__":
    main()
