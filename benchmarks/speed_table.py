"""Print the results of benchmarks/decoding.py at batch size 1 as the tables of docs/speed.md.

    python -m benchmarks.speed_table docs/results/benchmark_decoding.json

A test compares the page with it. Speed-ups are computed from the times of the sentences, also for older files,
whose own speed-ups are of totals.
"""

from __future__ import annotations

import argparse
from typing import Any

from amlp_fairseq.evaluation.decoding_times import Row, SpeedUp, add_speedups, ended_early, speed_up
from amlp_fairseq.training.results import markdown
from benchmarks.harness import read_result, verdict
from benchmarks.targets import targets

#: The system that others are compared with: few calls of the decoder are of no use if one of one layer is faster.
SHALLOW, PRECISION = "ar-deep", "int8"


def speed_table(result: dict[str, Any]) -> str:
    """Medians and speed-ups, a line for each system and precision, and the verdicts on targets that were measured."""
    lines: dict[tuple[str, str], list[str]] = {}
    add_speedups(result["decoding"], result["baseline"])
    for row in result["decoding"]:
        if row["batch"] == 1:
            calls, ms = row["decoder_calls"] / row["sentences"], row["ms_percentiles"][1]
            cell = f"{row['decoding']}: {calls:.1f} calls, {ms:.0f} ms, "
            cell += f"{SpeedUp(row['speedup'], *row['speedup_quartiles'])}" + ", disturbed" * bool(row.get("disturbed"))
            lines.setdefault((row["system"], row["precision"]), []).append(cell)
    width = max(map(len, lines.values()))
    rows = [[*key, *cells, *[""] * (width - len(cells))] for key, cells in lines.items()]
    facts = f"{result['device']}, {result['threads']} threads, torch {result['torch']}"
    facts += f", CTranslate2 {result['ctranslate2']}, commit {result['commit'][:12]}"
    verdicts = [f"- {verdict(target)}" for target in targets(result) if target["passed"] is not None]
    if early := ended_early(result):
        facts += f". {early}"
    if any("disturbed" not in row for row in result["decoding"]):
        facts += ". The program did not yet watch whether the machine was disturbed"
    limits = ", ".join(ceilings(result))
    if limits:
        limits = (
            "\n\nWere a decoder call for several words as long as one of ar's, float32 decoding would in total time be "
            f"{limits} times as fast as ar: the start of a sentence, with the encoder, stays."
        )
    return (
        f"{markdown(['system', 'precision', 'decoding', ''], rows)}\n\n"
        f"Medians over {result['decoding'][0]['sentences']} sentences; speed-ups over {result['baseline']}: medians of "
        f"each sentence's own, with quartiles; {facts}. To reach:\n\n" + "\n".join(verdicts) + limits
    )


def against_shallow(result: dict[str, Any]) -> str:
    """Speed of each system over a Transformer with one layer in the decoder, both in int8, the fastest first; beams are
    compared with the same beam, iterations with the beams in their order. Empty if it was not measured."""
    settings: dict[str, list[Row]] = {}
    for row in result["decoding"]:
        if row["batch"] == 1 and row["precision"] == PRECISION:
            settings.setdefault(row["system"], []).append(row)
    base = settings.pop(SHALLOW, [])
    if not base:
        return ""

    def cells(system: list[Row]) -> list[str]:
        names = [row["decoding"] for row in (base if "iterations" in system[0]["decoding"] else system)]
        matched = dict(zip(names, system, strict=False))
        pairs = [(matched.get(row["decoding"]), row) for row in base]
        return ["" if row is None else f"{row['decoding']}: {speed_up(row, shallow)}" for row, shallow in pairs]

    fastest = sorted(settings.items(), key=lambda item: item[1][-1]["ms_percentiles"][1])
    rows = [[name, *cells(system)] for name, system in fastest]
    columns = [f"over {SHALLOW} {PRECISION}, {row['decoding']}" for row in base]
    return markdown(["system, " + PRECISION, *columns], rows)


def ceilings(result: dict[str, Any]) -> list[str]:
    """The speed-ups over ``ar`` that systems which write several words per call would have if their calls took as long
    as those of ``ar``."""
    rows = {
        (row["system"], row["decoding"]): row
        for row in result["decoding"]
        if row["batch"] == 1 and row["precision"] == "float32"
    }
    limits = []
    for name in ("ibdecoder", "ibdecoder-sa"):
        for step in result["bound"]["steps"] if result["bound"] else ():
            decoding = step["decoding"]
            ar, other = rows.get(("ar", decoding)), rows.get((name, decoding))
            if ar is None or other is None:
                continue
            starts = ar["sentences"] * step["start_ms"] / 1000
            call = (ar["seconds"] - starts) / ar["decoder_calls"]
            limit = ar["seconds"] / (starts + other["decoder_calls"] * call)
            limits.append(f"{limit:.2f} ({name}, {decoding})")
    return limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=read_result, metavar="FILE.json")
    result = parser.parse_args().result
    if "decoding" not in result:
        parser.error("the file is not of benchmarks/decoding.py")
    if all(row["batch"] != 1 for row in result["decoding"]):
        parser.error("the file has no batch size 1")
    print(speed_table(result), against_shallow(result), sep="\n\n")


if __name__ == "__main__":
    main()
