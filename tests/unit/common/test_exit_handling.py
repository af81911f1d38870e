"""Endings of commands: by signals, without a reader, on a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest

PROGRAM = """
import os, signal, subprocess, sys
from amlp_fairseq.common.exit_handling import clear_endings
with clear_endings("test"):
    {}
"""


def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM.format(code)]
    return subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_its_children(number: signal.Signals) -> None:
    code = "child = subprocess.Popen(['sleep', '60']); print(child.pid); os.kill(os.getpid(), {}); child.wait()"
    read, write = os.pipe()
    with_sighup = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also where nohup runs the tests
    done = run(code.format(int(number)), stdout=write, preexec_fn=with_sighup)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        child = int(file.read())
    assert done.returncode == -number
    assert done.stderr == ("test: interrupted\n" if number == signal.SIGINT else "")
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{child}")


def test_a_signal_that_nohup_has_turned_off_is_ignored() -> None:
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN){PROGRAM.format('os.kill(os.getpid(), 1)')}"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_worker_dies_without_a_word() -> None:
    code = """pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGINT)
    assert os.waitpid(pid, 0)[1] == signal.SIGINT"""
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    done = run("print('a line')", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_broken_pipe_that_is_not_the_readers_is_an_error() -> None:
    done = run("raise BrokenPipeError(32, 'of a worker')", stdout=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "BrokenPipeError" in done.stderr


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = run("print('a line')", stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, "test: No space left on device\n")
    done = run("""try:
        open('/dev/full', 'w').write('x' * 9999)
    except OSError as error:
        raise RuntimeError('on top of it') from error""")
    assert (done.returncode, done.stderr) == (1, "test: No space left on device\n")
