"""The memory of long runs: what grows is told from what is level."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.decoding_memory import LEVEL, START, sampled, summary


def test_growth_is_told_from_start() -> None:
    """CPU seconds, bytes, most bytes: memory that a process takes while it starts does not count."""
    level = [[second, 100, min(20 * second, 100)] for second in range(START + 41)]
    growing = [[second, 100 + second, 100 + second] for second in range(START + 41)]
    found = [summary([[float(each) for each in sample] for sample in samples]) for samples in (level, growing)]
    times = [each["peak_bytes"] / each["quarter_peak_bytes"] for each in found]
    assert times == [1, (100 + START + 40) / (100 + START + 10)]
    assert times[0] <= LEVEL < times[1]


def test_the_process_that_works_is_sampled() -> None:
    """Also one that another thread has started."""
    work = "import time; data = bytearray(200 << 20); [0 for _ in iter(lambda: time.process_time() < 1.5, False)]"
    words = f"args=([sys.executable, '-c', {work!r}],)"
    start = f"import subprocess, sys, threading; threading.Thread(target=subprocess.run, {words}).start()"
    with subprocess.Popen([sys.executable, "-c", start]) as child:
        samples = sampled(child)
    assert samples[-1][2] > 200 << 20
