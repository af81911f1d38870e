"""Print results beside what papers publish, as Markdown tables.

    python scripts/make_tables.py docs/results/embedded.jsonl

The file is one that scripts/evaluate.sh appends to. Of several results of one configuration, data, way of decoding and
seed the last counts; several seeds are averaged. A difference to a paper is given only where data set and kind of BLEU
are the paper's. How fast systems are is for benchmark_decoding.py, which runs them side by side.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from benchmark_report import markdown
from recipe import CONFIGS, load

#: Where results have the kinds of BLEU.
KINDS = {"detokenised": "bleu", "tokenised": "tokenised_bleu", "compound-split": "compound_split_bleu"}

Key = tuple[str, bool, str]


def difference(ours: dict[str, Any], published: dict[str, Any]) -> float:
    """How much higher our BLEU is than a paper's.

    Raises:
        ValueError: if the paper's is of a kind that we do not have, or does not say of which.
    """
    if published["kind"] not in KINDS:
        raise ValueError(f"{published['row']}: BLEU of kind '{published['kind']}' is not comparable")
    return float(ours[KINDS[published["kind"]]] - published["bleu"])


class Results:
    """The results of one data set.

    Args:
        lines: results as scripts/evaluate.py writes them.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        (self.dataset,) = {line["dataset"] for line in lines}
        last = {(line["system"], line["distilled"], line["decoding"], line["seed"]): line for line in lines}
        self.lines = list(last.values())
        self.groups: dict[Key, list[dict[str, Any]]] = {}
        for (system, distilled, decoding, _), line in last.items():
            self.groups.setdefault((system, distilled, decoding), []).append(line)

    def mean(self, key: Key, name: str = "bleu") -> float | None:
        """The mean over seeds, None where there is no result."""
        return fmean(line[name] for line in self.groups[key]) if key in self.groups else None

    def bleu(self, key: Key) -> str:
        if key not in self.groups:
            return ""
        values = [line["bleu"] for line in self.groups[key]]
        spread = f" ± {stdev(values):.2f} ({len(values)})" if len(values) > 1 else ""
        return f"{fmean(values):.2f}{spread}"

    def overview(self) -> str:
        """All results."""
        columns = ["configuration", "targets", "decoding", "BLEU", "chrF", "calls", "parameters", "updates"]
        rows = []
        for key, lines in sorted(self.groups.items()):
            system, distilled, decoding = key
            line = lines[-1]
            rows.append(
                [
                    system,
                    "distilled" if distilled else "raw",
                    decoding,
                    self.bleu(key),
                    f"{self.mean(key, 'chrf'):.2f}",
                    f"{self.mean(key, 'steps_per_sentence'):.2f}",
                    f"{line['parameters'] / 1e6:.2f}M",
                    str(line["updates"]),
                ]
            )
        return markdown(columns, rows)

    def comparisons(self) -> dict[str, str]:
        """For each table of a paper, its rows with our results and the paper's."""
        columns = ["row", "configuration", "decoding", "BLEU", "distilled", "paper: BLEU", "distilled", "difference"]
        tables: dict[str, list[list[str]]] = {}
        for path in sorted((CONFIGS / self.dataset).glob("[!_]*.yaml")):
            recipe = load(path)
            for entry in recipe.published:
                raw, distilled = ((recipe.row, kind, entry["decoding"]) for kind in (False, True))
                if raw not in self.groups and distilled not in self.groups:
                    continue
                # A configuration at reduced scale has its paper's numbers from its base: they are of other data.
                comparable = recipe.dictionary is not None and raw in self.groups and "bleu" in entry
                try:
                    apart = f"{difference(self.groups[raw][-1], entry):+.2f}" if comparable else ""
                except ValueError as error:
                    apart = str(error)
                tables.setdefault(entry["table"], []).append(
                    [
                        entry["row"],
                        recipe.row,
                        entry["decoding"],
                        self.bleu(raw),
                        self.bleu(distilled),
                        str(entry.get("bleu", "")),
                        str(entry.get("distilled", "")),
                        apart,
                    ]
                )
        return {table: markdown(columns, rows) for table, rows in sorted(tables.items())}

    def orderings(self) -> str:
        """Whether what configs/orderings.yaml says holds here."""
        rows = []
        for claim in yaml.safe_load((CONFIGS / "orderings.yaml").read_text(encoding="utf-8")):
            if "gap" in claim:
                first, second, decoding = claim["gap"]
                keys = [(row, kind, decoding) for kind in (False, True) for row in (first, second)]
            else:
                keys = [(row, False, decoding) for row, decoding in (claim["higher"], claim["lower"])]
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
        names = ("subset", "bleu_signature", "chrf_signature", "device", "threads", "torch", "commit", "date")
        lines = []
        for name in names:
            values = sorted({str(line[name]) for line in self.lines if name in line})
            if values:
                lines.append(f"- {name.replace('_', ' ')}: {'; '.join(values)}")
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file that scripts/evaluate.sh has written")
    args = parser.parse_args()
    results = Results([json.loads(line) for line in args.results.read_text(encoding="utf-8").splitlines()])
    print(f"# {results.dataset}\n\n{results.overview()}\n\n{results.notes()}")
    for table, text in results.comparisons().items():
        print(f"\n## Beside the paper: {table}\n\n{text}")
    if orderings := results.orderings():
        print(f"\n## Orderings\n\n{orderings}")


if __name__ == "__main__":
    main()
