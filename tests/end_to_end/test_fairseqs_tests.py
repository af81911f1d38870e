"""fairseq's own tests with the plugin: none fails that passes without it."""

from __future__ import annotations

import os
import subprocess

import commands
import pytest

CHECKOUT = "FAIRSEQ_CHECKOUT"
RESULTS = commands.ROOT / "docs/results/fairseq_tests.txt"


@pytest.mark.long
@pytest.mark.skipif(CHECKOUT not in os.environ, reason=f"{CHECKOUT} names no clone of fairseq")
def test_no_test_of_fairseqs_fails_with_the_plugin_alone() -> None:
    script = commands.ROOT / "scripts/fairseq_tests.sh"
    done = subprocess.run(["bash", script, os.environ[CHECKOUT]], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_the_numbers_of_the_results() -> None:
    """docs/fairseq-traps.md: of test_binaries.py and of all files."""
    passed = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        assert not line.startswith("fails")
        without, ours, *name = line.split(maxsplit=2)
        if without.isdigit():
            passed[name[0]] = int(without), int(ours)
    assert passed.pop("in all") == tuple(map(sum, zip(*passed.values(), strict=True)))
    page = " ".join((commands.ROOT / "docs/fairseq-traps.md").read_text(encoding="utf-8").split())
    without, ours = passed["tests/test_binaries.py"]
    assert f"of test_binaries.py {ours} pass with the plugin and {without} without it" in page
    without, ours = map(sum, zip(*passed.values(), strict=True))
    assert f"of all {ours} pass with it and {without} without it" in page
