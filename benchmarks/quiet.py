"""Timings with signs that something else used the CPU meanwhile. Linux only."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

#: A run is disturbed if for more than UNSTEADY of its sentences the slowest repeat takes more than APART times as
#: long as the fastest, if a call had a CPU for less than RUNNING of its time, or if others used more than OTHERS of all
#: that the CPUs can do.
APART, UNSTEADY, RUNNING, OTHERS = 2.0, 0.01, 0.7, 0.05


class Timing(NamedTuple):
    """Seconds of a call.

    Attributes:
        wall: by the wall clock.
        cpu: CPU time of the timed processes.
        other_cpu: CPU time of other processes and the hypervisor on the same CPUs, counted in steps of 10 ms: only sums
            over a second and more say something.
    """

    wall: float
    cpu: float
    other_cpu: float


def busy_seconds(cpus: Iterable[int]) -> float:
    """Seconds of work of these CPUs since the system started, summed."""
    names, total = {f"cpu{number}" for number in cpus}, 0
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *ticks = line.split()
            if name in names:
                user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, ticks[:8])
                total += user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


def cpu_seconds(processes: Sequence[int]) -> float:
    """CPU time of this process and of others that run, all threads."""
    clock = ctypes.c_int()
    total = time.process_time()
    for process in processes:
        if ctypes.CDLL(None).clock_getcpuclockid(process, ctypes.byref(clock)) == 0:
            total += time.clock_gettime(clock.value)
    return total


def timed(run: Callable[[], Any], now: Callable[[], float], processes: Sequence[int] = ()) -> tuple[Timing, Any]:
    """The times of a call, and what it returns.

    Args:
        run: the call.
        now: the clock, in seconds.
        processes: those that work for it, beside this one.
    """
    cpus = os.sched_getaffinity(0)
    busy, cpu, start = busy_seconds(cpus), cpu_seconds(processes), now()
    result = run()
    wall = now() - start
    cpu = cpu_seconds(processes) - cpu
    return Timing(wall, cpu, busy_seconds(cpus) - busy - cpu), result


def unsteady(sentences: Sequence[Sequence[float]]) -> list[str]:
    """A message if the repeats of sentences, in any unit, are far apart."""
    slow = [repeats for repeats in sentences if max(repeats) > APART * min(repeats)]
    if len(slow) <= UNSTEADY * len(sentences):
        return []
    return [f"repeats {APART:g}x apart: {len(slow)} of {len(sentences)}"]


def disturbances(sentences: Sequence[Sequence[Timing]], cpus: int) -> list[str]:
    """Messages on what disturbed a run; none if its times can be trusted.

    Args:
        sentences: the repeats of each sentence, or batch.
        cpus: how many the run could use.
    """
    messages = unsteady([[call.wall for call in repeats] for repeats in sentences])
    calls = [call for repeats in sentences for call in repeats]
    waited = [call for call in calls if call.cpu < RUNNING * call.wall]
    if waited:
        messages.append(f"waited for a CPU: {len(waited)} of {len(calls)}")
    used = sum(call.other_cpu for call in calls) / sum(call.wall for call in calls)
    if used > OTHERS * cpus:
        messages.append(f"others used {used:.2f} of {cpus} CPUs")
    return messages
