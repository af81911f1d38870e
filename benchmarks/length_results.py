"""Crossovers, targets and tables of the numbers of benchmarks/length.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from amlp_fairseq.evaluation.decoding_times import Row
from benchmarks.crossover import crossover, crossover_text
from benchmarks.harness import target
from benchmarks.tables import Column, fields, table

AR, WRITTEN, SDPA = "AR", "written-out", "SDPA"
AMLP = ("AMLP-Cov", "AMLP-PQuery")
LINEAR = {
    "AMLP-Cov": "amlp_cov", "AMLP-PQuery": "amlp_pquery", "ABC": "abc", "local": "local", "Performer": "performer",
}  # fmt: skip
SYSTEMS = (AR, WRITTEN, SDPA, *LINEAR)
FORWARD, BACKWARD, CORE = KINDS = ("forward", "forward_backward", "core")
#: What crossovers are computed for.
MEASURES = {
    "forward_ms": "forward time", "forward_backward_ms": "forward+backward time", "core_ms": "core time",
    "forward_mib": "forward memory", "forward_backward_mib": "forward+backward memory",
}  # fmt: skip
#: The targets: AMLP at LONG against the written-out softmax (590/116 in the paper), its crossover, its memory.
LONG, SPEED, SAVED, CROSSOVER, SMALLER_FROM = 8192, 5.1, 0.89, 1500, 512
#: Speed over AR at LONG in the paper, on an A100; printed beside ours.
OVER_AR = {WRITTEN: 116, **dict.fromkeys(AMLP, 590)}


def crossovers(rows: list[Row]) -> list[Row]:
    """The crossovers of each linear attention with both softmax attentions, and the lengths at which it takes less."""
    crossings: list[Row] = []
    for against, name, (key, measure) in itertools.product((WRITTEN, SDPA), LINEAR, MEASURES.items()):
        ours, other = ({r["n"]: r[key] for r in rows if r["system"] == s and key in r} for s in (name, against))
        if both := sorted(ours.keys() & other.keys()):
            less = [n for n in both if ours[n] < other[n]]
            facts = {"system": name, "against": against, "measure": measure, "lengths": both}
            crossings.append(facts | {"crossover": crossover(ours, other), "less_at": less})
    return crossings


def targets(rows: list[Row], crossings: list[Row], kind: str) -> list[Row]:
    """The targets of the AMLP paper; ``passed`` is None if this run cannot tell."""
    measure = {FORWARD: "forward", BACKWARD: "forward+backward"}[kind]
    speed, memory = f"{kind}_speed_over_written_out", f"{kind}_memory_over_written_out"
    judged = []
    for name in AMLP:
        by_length = {row["n"]: row for row in rows if row["system"] == name and memory in row}
        longest = by_length.get(LONG)
        saved = 1 - longest[memory] if longest else None
        gain = longest[speed] if longest else None
        worst = max((row[memory] for n, row in by_length.items() if n >= SMALLER_FROM), default=None)
        crossing = next((row for row in crossings if (row["system"], row["against"], row["measure"])
                         == (name, WRITTEN, f"{measure} time")), None)  # fmt: skip
        where = f"{name}, {measure}:"
        judged += [
            target(
                f"{where} at {LONG} {100 * SAVED:.0f} % less memory than the written-out softmax",
                saved,
                None if saved is None else saved >= SAVED,
            ),
            target(f"{where} at {LONG} {SPEED} times its speed", gain, None if gain is None else gain >= SPEED),
            target(
                f"{where} no slower than it from {CROSSOVER} positions on, or from fewer",
                *(None, None) if crossing is None else judge_crossover(crossing),
            ),
            target(
                f"{where} from {SMALLER_FROM} on less memory than it, as a share at most",
                worst,
                None if worst is None else worst < 1,
            ),
        ]
    return judged


def judge_crossover(crossing: Row) -> tuple[float | None, bool | None]:
    """A crossover, if it is at a length, and whether it is at most CROSSOVER; None if the lengths cannot tell."""
    point, lengths = crossing["crossover"], crossing["lengths"]
    if point == "always":
        return None, True if lengths[0] <= CROSSOVER else None
    if point == "never":
        return None, False if lengths[-1] >= CROSSOVER else None
    return point, point <= CROSSOVER


def results_table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    columns = [
        ("forward ms", "forward_ms"), ("median", "forward_median_ms"), ("repeats", "forward_repeats"),
        ("core ms", "core_ms"), ("forward+backward ms", "forward_backward_ms"),
        ("median", "forward_backward_median_ms"), ("repeats", "forward_backward_repeats"),
        ("forward MiB", "forward_mib"), ("forward+backward MiB", "forward_backward_mib"),
        ("speed over AR", "forward_speed_over_ar"), ("over written-out", "forward_speed_over_written_out"),
        ("over SDPA", "forward_speed_over_sdpa"), ("memory of written-out", "forward_memory_over_written_out"),
    ]  # fmt: skip

    def content(key: str) -> Callable[[Row], object]:
        """The content of a column: a value, or the reason why it was left out."""

        def cell(row: Row) -> object:
            reason = row["left_out"].get(key.removesuffix("_ms"))
            return f"left out: {reason}" if reason else row.get(key)

        return cell

    return table(rows, [*fields(("n", "system")), *((title, content(key)) for title, key in columns)])


def crossover_table(crossings: list[Row]) -> str:
    """A line for each system and each softmax attention, a column for each measure."""
    groups: dict[tuple[str, str], Row] = {}
    for row in crossings:
        group = groups.setdefault((row["against"], row["system"]), dict(row))
        group[row["measure"]] = crossover_text(row["crossover"])
    columns: list[Column] = [("crossover of", "system"), ("against", "against")]
    return table(groups.values(), [*columns, *fields(MEASURES.values())])


def over_ar(rows: list[Row]) -> list[str]:
    """The speeds over AR that the paper reports, and ours."""
    key = "forward_speed_over_ar"
    return [
        f"{row['system']} at {LONG}: {row[key]:.3g} times as fast as AR (paper, A100: {OVER_AR[row['system']]})"
        for row in rows
        if row["n"] == LONG and row["system"] in OVER_AR and key in row
    ]


def comparison(crossings: list[Row]) -> list[str]:
    """The lengths at which AMLP takes less than SDPA, and the others."""

    def text(lengths: list[int]) -> str:
        return ", ".join(map(str, lengths)) or "none"

    return [
        f"{c['system']} against SDPA, {c['measure']}: less at {text(c['less_at'])}; "
        f"no less at {text([n for n in c['lengths'] if n not in c['less_at']])}"
        for c in crossings
        if c["against"] == SDPA and c["system"] in AMLP
    ]
