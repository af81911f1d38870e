"""fairseq's own tests with the plugin: none fails that passes without it."""

from __future__ import annotations

import os
import subprocess

import commands
import pytest

CHECKOUT = "FAIRSEQ_CHECKOUT"


@pytest.mark.long
@pytest.mark.skipif(CHECKOUT not in os.environ, reason=f"{CHECKOUT} names no clone of fairseq")
def test_no_test_of_fairseqs_fails_with_the_plugin_alone() -> None:
    script = commands.ROOT / "scripts/fairseq_tests.sh"
    done = subprocess.run(["bash", script, os.environ[CHECKOUT]], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
