"""librosa in several processes that begin without what it compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("librosa")
CODE = "from amlp_fairseq.common.librosa_import import import_librosa; import_librosa()"


@pytest.mark.long
def test_one_process_compiles(tmp_path: Path) -> None:
    """Of two that begin at once one writes numba's cache, and the other one writes nothing."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    written = sorted(process.communicate()[0].count("data saved to") for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert written[0] == 0
    assert written[1] > 0
