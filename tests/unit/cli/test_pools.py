"""Pools of worker processes in a command end."""

import subprocess
import sys

POOLS = """
import multiprocessing
from amlp_fairseq.common.exit_handling import clear_endings
with clear_endings("test"):
    for _ in range(8):
        with multiprocessing.Pool(4):
            pass  # its workers have hardly begun when they are told to end
"""


def test_pools_end() -> None:
    done = subprocess.run([sys.executable, "-c", POOLS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
