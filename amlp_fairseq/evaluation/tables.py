"""Print results next to those of the papers, as Markdown tables.

    amlp-fairseq tables docs/results/embedded.jsonl

The file is one that ``amlp-fairseq evaluate`` appends to. Of several results with the same configuration, data, way of
decoding, split and seed the last counts; several seeds are averaged, where their data have the checksum of the newest
result. Next to a paper's BLEU or ROUGE, ours is of the same kind and split; at reduced scale, where the data differ
anyway, of the test set if the validation set was not decoded. A difference is given only if data set, split and kind
are the paper's, with a mark if the paper does not say of which kind its BLEU is. Milliseconds are those of evaluate,
one sentence at a time; a speed-up is over the row whose speed-up is 1 in the paper, if both ran on the same machine.
benchmarks/decoding.py measures systems side by side.
"""

from __future__ import annotations

import math
import re
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import yaml

from amlp_fairseq.common.arguments import command_parser, say_next
from amlp_fairseq.common.metrics import DEFAULT, METRICS, metric_of
from amlp_fairseq.evaluation.experiment import Experiment
from amlp_fairseq.training.config import CONFIGS, PAPER, Recipe, load, names, paper_variant
from amlp_fairseq.training.results import PERPLEXITY, markdown, read_results, same_data

DIVERGES = "diverges"
UNSTATED = "?: the paper does not say of which kind its BLEU is; ours is detokenised."
NOT_DECODED = "—: no result on the validation set, of which the table is: amlp-fairseq evaluate --subset valid,test."
ORDERINGS = CONFIGS / "orderings.yaml"
#: Where results must be of the same, so that a speed-up can be told.
MACHINE = ("device", "threads", "engine")
#: Keys of every result, beside its scores.
FIELDS = ("data", "scale", "system", "distilled", "decoding", "seed", "parameters", "updates")


class Key(NamedTuple):
    """The keys that results share which differ only in the seed."""

    system: str
    distilled: bool
    decoding: str
    split: str
    options: str = ""


def options_of(line: dict[str, Any]) -> str:
    """The user's own options of a training, in alphabetical order, the seed not in the name of the row's folder."""
    experiment = Experiment.of(line)
    options = line.get("training_options", "").replace(f"/{experiment.name}/", f"/{experiment.configuration}/")
    return " ".join(sorted(re.split(r" (?=--)", options)))


class Results:
    """The results on one corpus at one scale.

    Args:
        lines: results as ``amlp-fairseq evaluate`` writes them.

    Attributes:
        metric: what they are scored by; all functions take its ``main`` where they are not told another field.

    Raises:
        ValueError: if they are of several corpora or scales.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        found = {(line["data"], line["scale"]) for line in lines}
        if len(found) != 1:
            raise ValueError(f"results of one corpus at one scale are needed, not of {sorted(found)}")
        ((self.data, self.scale),) = found
        self.metric_name = metric_of({*chain.from_iterable(lines)})
        self.metric = METRICS[self.metric_name]
        last: dict[tuple[Key, int], dict[str, Any]] = {}
        newest: dict[Key, str | None] = {}
        for line in lines:
            key = Key(line["system"], line["distilled"], line["decoding"], line["split"], options_of(line))
            last[key, line["seed"]] = line
            newest[key] = line.get("data_sha256")
        self.lines = list(last.values())
        self.groups: dict[Key, list[dict[str, Any]]] = {}
        for (key, _), line in last.items():
            self.groups.setdefault(key, []).append(line)
        for key, group in self.groups.items():
            self.groups[key] = [line for line in group if same_data(line, newest[key], self.data)]

    def mean(self, key: Key, name: str | None = None) -> float | None:
        """The mean over seeds, without those that diverge; None where there is no result."""
        values = self.values(key, name)
        return fmean(values) if values else None

    def values(self, key: Key, name: str | None = None) -> list[float]:
        """The values of the seeds."""
        name = name or self.metric.main
        return [line[name] for line in self.groups.get(key, ()) if name in line]

    def diverging(self, key: Key) -> int:
        """The number of seeds that diverge."""
        return sum(DIVERGES in line for line in self.groups.get(key, ()))

    def score(self, key: Key, name: str | None = None) -> str:
        """The mean, with its spread and the number of seeds, or how many diverge; empty where there is no result."""
        values, diverging = self.values(key, name), self.diverging(key)
        if not values:
            return DIVERGES if diverging else ""
        spread = f" ± {stdev(values):.2f} ({len(values)})" if len(values) > 1 else ""
        return f"{fmean(values):.2f}{spread}" + f" ({diverging} of {diverging + len(values)} diverge)" * bool(diverging)

    def best_seed(self, key: Key, name: str | None) -> float | None:
        """The test score of the seed that is best on the validation set; None unless there are several seeds, and each
        has a result on both."""
        on = {
            split: {line["seed"]: line.get(name or self.metric.main) for line in self.groups.get(each, ())}
            for split, each in ((split, key._replace(split=split)) for split in ("valid", "test"))
        }
        valid = {seed: score for seed, score in on["valid"].items() if score is not None}
        if len(on["test"]) < 2 or on["valid"].keys() != on["test"].keys() or not valid:
            return None
        score: float | None = on["test"][max(valid, key=lambda seed: valid[seed])]
        return score

    def calls(self, key: Key) -> str:
        """Decoder calls a sentence, the mean over seeds; empty if a decoding without --print-step is among them."""
        counted = all("steps_per_sentence" in line for line in self.groups[key])
        return f"{self.mean(key, 'steps_per_sentence'):.2f}" if counted else ""

    def speedup(self, key: Key, baseline: Key) -> float | None:
        """Speed-up over another way of decoding, if both were timed on one kind of machine."""
        lines = [*self.groups.get(key, ()), *self.groups.get(baseline, ())]
        machines = {tuple(line.get(name) for name in MACHINE) for line in lines}
        ours, theirs = (self.mean(each, "milliseconds_per_sentence") for each in (key, baseline))
        return theirs / ours if ours and theirs and len(machines) == 1 else None

    def overview(self) -> str:
        """All results."""
        columns = ["configuration", "targets", "decoding", "split", *self.metric.columns]
        calls = any("steps_per_sentence" in line for line in self.lines)
        columns += [*["calls"] * calls, "parameters", "updates"]
        rows = []
        for key, lines in sorted(self.groups.items()):
            line = lines[-1]
            rows.append(
                [
                    f"{key.system} {key.options}".strip(),
                    "distilled" if key.distilled else "raw",
                    key.decoding,
                    key.split,
                    *(
                        self.score(key) if name == self.metric.main else _digits(self.mean(key, name))
                        for name in self.metric.columns.values()
                    ),
                    *([self.calls(key)] if calls else []),
                    f"{line['parameters'] / 1e6:.2f}M",
                    str(line["updates"]),
                ]
            )
        return markdown(columns, rows)

    def comparisons(self) -> dict[str, str]:
        """For each table of a paper, its rows with our results and the paper's."""
        tables: dict[str, list[Comparison]] = {}
        for row in names("rows"):
            recipe = load(row, self.data if self.data in names("data") else "", PAPER)
            for entry in recipe.published:
                compared = Comparison(self, recipe, entry)
                if compared.has_results:
                    tables.setdefault(entry["table"], []).append(compared)
        return {table: _beside(rows) for table, rows in sorted(tables.items())}

    def orderings(self) -> str:
        """True if the claims of configs/orderings.yaml hold here, as far as they are of the metric."""
        rows = []
        for claim in yaml.safe_load(ORDERINGS.read_text(encoding="utf-8")):
            if claim.get("metric", DEFAULT) != self.metric_name:
                continue
            if "gap" in claim:
                first, second, decoding = claim["gap"]
                keys = [Key(row, kind, decoding, "test") for kind in (False, True) for row in (first, second)]
            else:
                keys = [claimed(claim, side) for side in ("higher", "lower")]
            worst = self.metric.best([math.inf, -math.inf]) * -1
            values = [worst if self.score(key) == DIVERGES else self.mean(key) for key in keys]
            found = [value for value in values if value is not None]
            if len(found) < len(keys) or all(map(math.isinf, found)):
                continue
            margin = found[0] - found[1] - (found[2] - found[3] if "gap" in claim else 0)
            seeds = min(len(self.groups[key]) for key in keys)
            verdict = "reproduced" if margin > 0 else "not reproduced"
            if abs(margin) < 1 and seeds < 3:
                verdict += f", close and of {seeds} seed(s)"
            shown = f"{margin:+.2f}" if math.isfinite(margin) else DIVERGES
            rows.append([claim["table"], claim["says"], shown, verdict])
        return markdown(["table", "the paper", "margin here", ""], rows) if rows else ""

    def notes(self) -> str:
        """The keys that the results share."""
        names = ("subset", *(f"{metric}_signature" for metric in ("bleu", "kytea", "chrf", "rouge")))
        names += ("device", "threads", "torch", "commit", "date")
        lines = []
        for name in names:
            values = sorted({str(line[name]) for line in self.lines if name in line})
            if values:
                lines.append(f"- {name.replace('_', ' ')}: {'; '.join(values)}")
        return "\n".join(lines)


class Comparison:
    """A row of a paper's table, our results beside it.

    Args:
        results: ours.
        recipe: the row's, at the scale of the papers.
        entry: what is published of it.
    """

    def __init__(self, results: Results, recipe: Recipe, entry: dict[str, Any]) -> None:
        self.results, self.recipe, self.entry = results, recipe, entry
        self.of_papers = results.scale == PAPER and entry["data"] == results.data
        split = entry.get("split", "test")
        groups = results.groups
        if not self.of_papers and Key(recipe.row, False, entry["decoding"], split) not in groups:
            split = "test" if Key(recipe.row, True, entry["decoding"], split) not in groups else split
        self.raw, self.distilled = (Key(recipe.row, kind, entry["decoding"], split) for kind in (False, True))
        self.field = PERPLEXITY if entry["decoding"] == PERPLEXITY else results.metric.kinds.get(entry.get("kind", ""))

    @property
    def has_results(self) -> bool:
        """True if the row has any in this way of decoding, on whatever set."""
        keys = [key._replace(split=split) for key in (self.raw, self.distilled) for split in ("valid", "test")]
        return any(key in self.results.groups for key in keys)

    @property
    def timed(self) -> Key:
        """The results whose speed stands beside the paper's: its are of distilled models where it has any."""
        return self.distilled if "distilled" in self.entry and self.distilled in self.results.groups else self.raw

    def score(self, key: Key) -> str:
        """Ours."""
        if key not in self.results.groups:
            return "—" * (key.split == "valid" and key._replace(split="test") in self.results.groups)
        best = self._best_seed(key)
        if best is None:
            return self.results.score(key, self.field)
        return f"{best:.2f} (best of {len(self.results.groups[key])})"

    def difference(self, key: Key) -> str:
        """Our number minus the paper's, empty where they cannot be compared."""
        theirs = self.entry.get("distilled" if key.distilled else self.title.lower())
        lines = self.results.groups.get(key, [])
        variant = paper_variant(self.entry["data"], self.entry["table"])
        same = self.of_papers and all(line.get("variant", "") == variant for line in lines)
        if not same or not self.field or not isinstance(theirs, (int, float)):  # a training that diverges has no BLEU
            return ""
        best = self._best_seed(key)
        ours = self.results.mean(key, self.field) if best is None else best
        return "" if ours is None else f"{ours - theirs:+.2f}" + " ?" * (self.entry.get("kind") == "unstated")

    @property
    def title(self) -> str:
        """The name of the numbers."""
        return "Perplexity" if self.field == PERPLEXITY else self.results.metric.title

    def cells(self, baseline: Comparison | None) -> dict[str, str]:
        """The row by column.

        Args:
            baseline: the row over which speed-ups are.
        """
        entry, ms = self.entry, self.results.mean(self.timed, "milliseconds_per_sentence")
        speedup = self.results.speedup(self.timed, baseline.timed) if baseline else None
        published = str(entry.get(self.title.lower(), ""))
        published += f" ± {entry['deviation']}" if "deviation" in entry else ""
        theirs = f"{entry['speedup']:.2f}" if "speedup" in entry else ""
        theirs += f" ({entry['raw-speedup']:.2f} raw)" if "raw-speedup" in entry else ""
        return {
            "row": entry["row"],
            "configuration": self.recipe.row,
            "decoding": entry["decoding"],
            self.title: self.score(self.raw),
            "distilled": self.score(self.distilled),
            f"paper: {self.title}": published,
            "paper: distilled": str(entry.get("distilled", "")),
            "kind": ", ".join(entry[name] for name in ("kind", "split") if name in entry),
            "difference": self.difference(self.raw),
            "difference, distilled": self.difference(self.distilled),
            "ms": _digits(ms),
            "paper: ms": str(entry.get("latency", "")),
            "speed-up": _digits(speedup),
            "paper: speed-up": theirs,
            "sent/s": _digits(1000 / ms if ms else None),
            "paper: sent/s": str(entry.get("sentences-per-second", "")),
            "PMI": "".join(f"{value:.3f}" for value in self.results.values(self.raw, "pmi")[-1:]),
            "paper: PMI": str(entry.get("pmi", "")),
            "note": entry.get("note", ""),
        }

    def _best_seed(self, key: Key) -> float | None:
        return self.results.best_seed(key, self.field) if self.recipe.best_seed and key.split == "test" else None


#: Columns that a table has if the paper's has them: the paper's, and with it ours.
OPTIONAL = {f"paper: {name}": name for name in ("ms", "speed-up", "sent/s", "PMI")} | {"note": ""}


def _beside(rows: list[Comparison]) -> str:
    """A paper's table with ours."""
    baseline = next((row for row in rows if row.entry.get("speedup", 1) == 1), None)
    lines = [row.cells(baseline) for row in rows]
    left_out = {name for pair in OPTIONAL.items() for name in pair if not any(line.get(pair[0]) for line in lines)}
    columns = [name for name in lines[0] if name not in left_out]
    text = markdown(columns, [[line[name] for name in columns] for line in lines])
    marks = {UNSTATED: "?", NOT_DECODED: "—"}
    told = [line[name] for line in lines for name in columns if name != "row" and name != "note"]
    return "\n\n".join([text, *(note for note, mark in marks.items() if any(cell.endswith(mark) for cell in told))])


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def claimed(claim: dict[str, Any], side: str) -> Key:
    """The key of the results on one side of a claim.

    Raises:
        ValueError: if the claim does not name it properly.
    """
    if claim[side][2:] not in ([], ["distilled"]) or len(claim[side]) < 2:
        raise ValueError(f"{ORDERINGS}: {side}: {claim[side]}: must be [row, decoding] or [row, decoding, distilled]")
    return Key(claim[side][0], len(claim[side]) == 3, claim[side][1], "test")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The results in a file.

    Raises:
        ValueError: naming the file, if it has none, or lines that are no results.
    """
    lines = read_results(path)
    if not lines:
        raise ValueError(f"{path} has no results")
    scores = METRICS[metric_of({*chain.from_iterable(lines)})].columns.values()
    for count, line in enumerate(lines, 1):
        needed = [*FIELDS, *(() if DIVERGES in line or line.get("decoding") == PERPLEXITY else scores)]
        if missing := [name for name in needed if line.get(name) is None]:
            raise ValueError(f"{path}, result {count} has no {', '.join(missing)}: amlp-fairseq evaluate writes them")
    return lines


def report(path: Path) -> str:
    """All tables of a file of results."""
    results = Results(read_lines(path))
    name = results.scale if results.data in results.scale else f"{results.data}, scale {results.scale}"
    parts = [f"# {name}", results.overview(), results.notes()]
    known = results.data in names("data")  # one's own is in no paper
    for table, text in results.comparisons().items() if known else ():
        parts += [f"## Beside the paper: {table}", text]
    if known and (orderings := results.orderings()):
        parts += ["## Orderings", orderings]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = command_parser("tables", __doc__)
    parser.add_argument("results", type=Path, help="a file that amlp-fairseq evaluate has written")
    args = parser.parse_args()
    print(report(args.results), end="")
    if args.results.suffix == ".jsonl":  # as report wants it
        say_next("report", args.results, "--out", "report.html")


if __name__ == "__main__":
    main()
