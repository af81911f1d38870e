"""Average checkpoints of a configuration, decode a test set in each of its ways, and store what comes out.

    bash scripts/evaluate.sh CONFIG CHECKPOINTS DATA [--subset S] [--results FILE] [options of fairseq-generate]

CHECKPOINTS is the folder that scripts/train.sh wrote, DATA one of scripts/prepare_*.sh, which has raw references and
says how text was tokenised. A line of JSON is appended to the results file (default docs/results/<dataset>.jsonl) for
each way of decoding; outputs stay in CHECKPOINTS, those named .hyp in the order of the set. Where the configuration has
``tune-lenpen``, the length penalty with the highest BLEU on the validation set is taken. Sentences are decoded one at a
time, so that times are latencies; with ``--batch-size 32`` and the like no times are stored.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from recipe import PLUGIN, Recipe, flags, load, quoted
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
    """One model on one data folder.

    Args:
        recipe: its configuration.
        checkpoint: the file to decode with.
        data: the data folder.
        rest: options of fairseq-generate that win over the configuration's.
    """

    def __init__(self, recipe: Recipe, checkpoint: Path, data: Path, rest: list[str]) -> None:
        self.recipe, self.checkpoint, self.data, self.rest = recipe, checkpoint, data, rest
        self.text = text_settings(data)
        languages = self.text["languages"]
        self.source = recipe.task.get("source-lang", languages[0])
        self.target = recipe.task.get("target-lang", languages[1])

    def generate(self, subset: str, values: dict[str, Any], output: Path, *more: str) -> str:
        """What fairseq-generate prints for a subset; also written to a file."""
        words = [
            "fairseq-generate",
            str(self.data),
            "--user-dir",
            str(PLUGIN),
            *flags(self.recipe.task, self.recipe.path),
        ]
        words += ["--path", str(self.checkpoint), "--gen-subset", subset, *flags(values, self.recipe.path)]
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

    def tuned(self, name: str, values: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The options of a way of decoding with the length penalty that is best on the validation set."""
        scores = {}
        for penalty in self.recipe.tune_lenpen:
            output = folder / f"generated.valid.{name}.lenpen{penalty}.txt".replace(" ", "-")
            printed = self.generate("valid", values | {"lenpen": penalty}, output, "--max-tokens", "4000")
            scores[penalty] = self.scored("valid", printed)["bleu"]
            print(f"{name}, lenpen {penalty}: {scores[penalty]} BLEU on the validation set", file=sys.stderr)
        return values | {"lenpen": max(scores, key=lambda penalty: scores[penalty])}

    def results(self, subset: str, folder: Path) -> list[dict[str, Any]]:
        """A result for each way of decoding."""
        found = []
        for name, options in self.recipe.generate.items():
            values = self.tuned(name, options, folder) if self.recipe.tune_lenpen else options
            output = folder / f"generated.{subset}.{name}.txt".replace(" ", "-")
            printed = self.generate(subset, values, output, "--batch-size", "1")
            scores = self.scored(subset, printed)
            hypotheses = hypotheses_of(printed, scores["sentences"])
            output.with_suffix(".hyp").write_text("".join(line + "\n" for line in hypotheses), encoding="utf-8")
            facts = {
                "dataset": self.recipe.dataset,
                "system": self.recipe.row,
                "distilled": (self.data / "manifest.json").is_file(),
                "subset": self.text[f"{subset}_set"],
                "decoding": name,
                "options": quoted([*flags(values, self.recipe.path), *self.rest]),
            }
            if {word.split("=")[0] for word in self.rest} & {"--batch-size", "--max-sentences", "--max-tokens"}:
                scores.pop("milliseconds_per_sentence", None)  # not a latency
            found.append(facts | scores | environment())
        return found


def averaged(recipe: Recipe, checkpoints: Path) -> Path:
    """The average of the checkpoints that the configuration names, in their folder."""
    ((kind, count),) = recipe.average.items()
    result = checkpoints / "average.pt"
    words = ["amlp-average-checkpoints", "--inputs", str(checkpoints), f"--{kind}", str(count), "--output", str(result)]
    print("+", quoted(words), file=sys.stderr, flush=True)
    if status := subprocess.run(words).returncode:
        raise RuntimeError(f"amlp-average-checkpoints: status {status}")
    return result


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
    parser.add_argument("--subset", choices=("valid", "test"), default="test", help="what to decode")
    parser.add_argument("--results", type=Path, help="by default docs/results/<dataset>.jsonl")
    args, rest = parser.parse_known_args()
    try:
        recipe = load(args.config)
        if not args.checkpoints.is_dir():
            raise ValueError(f"CHECKPOINTS {args.checkpoints}: there is no such folder")
        text_settings(args.data)
        evaluation = Evaluation(recipe, averaged(recipe, args.checkpoints), args.data, rest)
        results = evaluation.results(args.subset, args.checkpoints)
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
