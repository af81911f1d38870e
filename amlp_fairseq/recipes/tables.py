"""Print results next to those of the papers, as Markdown tables.

    amlp-fairseq tables docs/results/embedded.jsonl

The file is one that ``amlp-fairseq evaluate`` appends to. Of several results with the same configuration, data, way of
decoding, split and seed the last counts; several seeds are averaged, where their data have the checksum of the newest
result. Next to a paper's BLEU or ROUGE, ours is of the same kind and split; at reduced scale, where the data differ
anyway, of the test set. A difference is given only if data set, split and kind are the paper's, with a mark if the
paper does not say of which kind its BLEU is. Speed is measured by benchmarks/decoding.py, which runs systems side by
side.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import yaml

from amlp_fairseq.recipes.config import CONFIGS, PAPER, load, names
from amlp_fairseq.recipes.experiment import Experiment
from amlp_fairseq.recipes.metrics import DEFAULT, METRICS, metric_of
from amlp_fairseq.recipes.results import markdown, read_results, same_data
from amlp_fairseq.usage import command_parser

UNSTATED = "?: the paper does not say of which kind its BLEU is; ours is detokenised."
ORDERINGS = CONFIGS / "orderings.yaml"
#: What every result has, beside its scores.
FIELDS = ("data", "scale", "system", "distilled", "decoding", "seed", "parameters", "updates")


class Key(NamedTuple):
    """What is the same in results that differ only in the seed."""

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
        self.metric_name = metric_of(lines[0])
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
        """The mean over seeds, None where there is no result."""
        return fmean(line[name or self.metric.main] for line in self.groups[key]) if key in self.groups else None

    def score(self, key: Key, name: str | None = None) -> str:
        """The mean, with its spread and the number of seeds; empty where there is no result."""
        if key not in self.groups:
            return ""
        values = [line[name or self.metric.main] for line in self.groups[key]]
        spread = f" ± {stdev(values):.2f} ({len(values)})" if len(values) > 1 else ""
        return f"{fmean(values):.2f}{spread}"

    def calls(self, key: Key) -> str:
        """Decoder calls a sentence, the mean over seeds; empty if a decoding without --print-step is among them."""
        counted = all("steps_per_sentence" in line for line in self.groups[key])
        return f"{self.mean(key, 'steps_per_sentence'):.2f}" if counted else ""

    def difference(self, key: Key, published: dict[str, Any]) -> str:
        """How much higher our number is than a paper's, empty where they cannot be compared."""
        theirs = published.get("distilled" if key.distilled else self.metric.title.lower())
        kind = published.get("kind")
        field = self.metric.kinds.get(kind or "")
        ours = self.mean(key, field) if field else None
        if ours is None or not isinstance(theirs, (int, float)):  # a training that diverges has no BLEU
            return ""
        return f"{ours - theirs:+.2f}" + " ?" * (kind == "unstated")

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
                        self.score(key) if name == self.metric.main else f"{self.mean(key, name):.2f}"
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
        title = self.metric.title
        columns = ["row", "configuration", "decoding", title, "distilled", f"paper: {title}", "distilled", "kind"]
        columns += ["difference", "distilled", "paper: sent/s"]
        tables: dict[str, list[list[str]]] = {}
        for row in names("rows"):
            recipe = load(row, self.data if self.data in names("data") else "", PAPER)
            for entry in recipe.published:
                comparable = self.scale == PAPER and entry["data"] == self.data
                split = entry.get("split", "test") if comparable else "test"
                raw, distilled = (Key(recipe.row, kind, entry["decoding"], split) for kind in (False, True))
                if raw not in self.groups and distilled not in self.groups:
                    continue
                kind = self.metric.kinds.get(entry.get("kind", ""))
                tables.setdefault(entry["table"], []).append(
                    [
                        entry["row"],
                        recipe.row,
                        entry["decoding"],
                        self.score(raw, kind),
                        self.score(distilled, kind),
                        str(entry.get(title.lower(), "")),
                        str(entry.get("distilled", "")),
                        ", ".join(entry[name] for name in ("kind", "split") if name in entry),
                        self.difference(raw, entry) if comparable else "",
                        self.difference(distilled, entry) if comparable else "",
                        str(entry.get("sentences-per-second", "")),
                    ]
                )
        found = {}
        for table, rows in sorted(tables.items()):
            width = len(columns) if any(row[-1] for row in rows) else -1
            found[table] = markdown(columns[:width], [row[:width] for row in rows])
            if any("?" in row[-3] + row[-2] for row in rows):
                found[table] += f"\n\n{UNSTATED}"
        return found

    def orderings(self) -> str:
        """Whether the claims of configs/orderings.yaml hold here, as far as they are of the metric."""
        rows = []
        for claim in yaml.safe_load(ORDERINGS.read_text(encoding="utf-8")):
            if claim.get("metric", DEFAULT) != self.metric_name:
                continue
            if "gap" in claim:
                first, second, decoding = claim["gap"]
                keys = [Key(row, kind, decoding, "test") for kind in (False, True) for row in (first, second)]
            else:
                keys = [claimed(claim, side) for side in ("higher", "lower")]
            values = [self.mean(key) for key in keys]
            if None in values:
                continue
            found = [value for value in values if value is not None]
            margin = found[0] - found[1] - (found[2] - found[3] if "gap" in claim else 0)
            seeds = min(len(self.groups[key]) for key in keys)
            verdict = "reproduced" if margin > 0 else "not reproduced"
            if abs(margin) < 1 and seeds < 3:
                verdict += f", close and of {seeds} seed(s)"
            rows.append([claim["table"], claim["says"], f"{margin:+.2f}", verdict])
        return markdown(["table", "the paper", "margin here", ""], rows) if rows else ""

    def notes(self) -> str:
        """What the results have in common."""
        names = ("subset", *(f"{metric}_signature" for metric in ("bleu", "kytea", "chrf", "rouge")))
        names += ("device", "threads", "torch", "commit", "date")
        lines = []
        for name in names:
            values = sorted({str(line[name]) for line in self.lines if name in line})
            if values:
                lines.append(f"- {name.replace('_', ' ')}: {'; '.join(values)}")
        return "\n".join(lines)


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
    needed = [*FIELDS, *METRICS[metric_of(lines[0])].columns.values()]
    for count, line in enumerate(lines, 1):
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


if __name__ == "__main__":
    main()
