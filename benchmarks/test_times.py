"""Measure the CPU time of each test function, with that of the processes that it starts, and write the costliest down.

    python -m benchmarks.test_times measure TIMES.tsv [--every N] PYTEST_ARGUMENT …
    python -m benchmarks.test_times table TIMES.tsv …

``measure`` runs pytest and appends a line for each function to TIMES.tsv: seconds of CPU, seconds, cases, name. With
``--every N`` only each Nth case of a function with more than 2 N runs, and its times are scaled up. CPU time hardly
depends on what else the machine does. ``table`` prints the sums of files of ``measure`` and the costliest functions.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """CPU time of this process and its descendants, those that have ended included."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICK
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(used.get(pid, 0) for pid in mine)


class Durations:
    """A pytest plugin that adds the durations up by function."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.cases: dict[str, list[str]] = defaultdict(list)
        self.spent: dict[str, list[tuple[float, float]]] = defaultdict(list)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.cases[function(item)].append(item.nodeid)
        if self.every > 1:
            steps = {name: self.every if len(ids) > 2 * self.every else 1 for name, ids in self.cases.items()}
            chosen = {case for name, ids in self.cases.items() for case in ids[:: steps[name]]}
            items[:] = [item for item in items if item.nodeid in chosen]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cpu, wall = cpu_seconds(), time.perf_counter()
        result = yield
        self.spent[function(item)].append((cpu_seconds() - cpu, time.perf_counter() - wall))
        return result

    def write(self, out: Path) -> None:
        with out.open("a", encoding="utf-8") as file:
            for name, spent in self.spent.items():
                count = len(self.cases[name])
                cpu, wall = (sum(column) * count / len(spent) for column in zip(*spent, strict=True))
                print(f"{cpu:.2f}", f"{wall:.2f}", count, name, sep="\t", file=file)


def function(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def table(paths: list[Path], count: int = 40) -> None:
    rows = [line.split("\t") for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    rows.sort(key=lambda row: -float(row[0]))
    cpu, cases = sum(float(row[0]) for row in rows), sum(int(row[2]) for row in rows)
    print(f"{cases} cases of {len(rows)} functions: {cpu / 60:.1f} minutes of CPU")
    print("\nCPU s\tcases\tfunction")
    for row in rows[:count]:
        print(f"{float(row[0]):.1f}", row[2], row[3], sep="\t")


def main() -> int:
    action, *words = sys.argv[1:] or ["--help"]
    if action == "table" and words:
        table([Path(word) for word in words])
        return 0
    if action != "measure" or not words:
        print(__doc__.strip())
        return 0 if action == "--help" else 2
    out, *words = words
    every = int(words[1]) if words[:1] == ["--every"] else 1
    plugin = Durations(every)
    status = pytest.main(words[2:] if every > 1 else words, plugins=[plugin])
    plugin.write(Path(out))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
