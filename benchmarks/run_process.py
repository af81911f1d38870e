"""Run a command on some CPUs and report what it took. Small, so that it adds nothing to the command's memory.

    python -S benchmarks/run_process.py REPORT.json CPU,CPU,… COMMAND …

Input and output are the command's. The report: status, wall-clock seconds from start to end, CPU seconds, and the bytes
of the largest process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time


def main() -> None:
    report, cpus, *command = sys.argv[1:]
    os.sched_setaffinity(0, map(int, cpus.split(",")))
    start = time.perf_counter()
    status = subprocess.run(command).returncode
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {"status": status, "seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime}
    with open(report, "w", encoding="utf-8") as file:
        json.dump(facts | {"peak_bytes": 1024 * used.ru_maxrss}, file)


if __name__ == "__main__":
    main()
