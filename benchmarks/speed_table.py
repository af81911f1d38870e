"""Print the results of benchmarks/decoding.py at batch size 1 as the table of docs/speed.md.

    python -m benchmarks.speed_table docs/results/benchmark_decoding.json

A test compares the page with it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from amlp_fairseq.recipes.results import markdown
from benchmarks.harness import verdict


def speed_table(result: dict[str, Any]) -> str:
    """Medians and speed-ups, a line for each system and precision, and the verdicts on targets that were measured."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in result["decoding"]:
        if row["batch"] == 1:
            calls, ms = row["decoder_calls"] / row["sentences"], row["ms_percentiles"][1]
            cell = f"{row['decoding']}: {calls:.1f} calls, {ms:.0f} ms, {row['speedup']:.2f}x"
            lines.setdefault((row["system"], row["precision"]), []).append(cell)
    width = max(map(len, lines.values()))
    rows = [[*key, *cells, *[""] * (width - len(cells))] for key, cells in lines.items()]
    facts = f"{result['device']}, {result['threads']} threads, torch {result['torch']}"
    facts += f", CTranslate2 {result['ctranslate2']}, commit {result['commit'][:12]}"
    verdicts = [f"- {verdict(target)}" for target in result["targets"] if target["passed"] is not None]
    limits = ", ".join(ceilings(result))
    if limits:
        limits = (
            "\n\nWere a decoder call for several words as long as one of ar's, float32 decoding would be "
            f"{limits} times as fast as ar: the start of a sentence, with the encoder, stays."
        )
    return (
        f"{markdown(['system', 'precision', 'decoding', ''], rows)}\n\n"
        f"Medians over sentences, speed-ups over {result['baseline']} in total time; {facts}. To reach:\n\n"
        + "\n".join(verdicts)
        + limits
    )


def ceilings(result: dict[str, Any]) -> list[str]:
    """The speed-ups over ``ar`` that systems which write several words per call would have if their calls took as long
    as those of ``ar``."""
    rows = {
        (row["system"], row["decoding"]): row
        for row in result["decoding"]
        if row["batch"] == 1 and row["precision"] == "float32"
    }
    found = []
    for name in ("ibdecoder", "ibdecoder-sa"):
        for step in result["bound"]["steps"] if result["bound"] else ():
            way = step["decoding"]
            ar, other = rows.get(("ar", way)), rows.get((name, way))
            if ar is None or other is None:
                continue
            starts = ar["sentences"] * step["start_ms"] / 1000
            call = (ar["seconds"] - starts) / ar["decoder_calls"]
            limit = ar["seconds"] / (starts + other["decoder_calls"] * call)
            found.append(f"{limit:.2f} ({name}, {way})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, metavar="FILE.json")
    print(speed_table(json.loads(parser.parse_args().result.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
