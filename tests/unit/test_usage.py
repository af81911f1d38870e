"""Names of folders that fairseq would take apart are refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import commands
import pytest


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ("prepare text new:1", "OUT"),
        ("distill teacher.pt data new:1", "OUT"),
        ("train . --row ibdecoder --scale embedded --save-dir new:1", "--save-dir"),
        ("package checkpoint.pt --out new:1", "--out"),
    ],
)
def test_no_colon_in_the_name_of_a_result(words: str, argument: str, tmp_path: Path) -> None:
    printed = commands.run("amlp_fairseq.cli.main", *words.split(), check=False, cwd=tmp_path)
    command = words.split()[0]
    message = f"argument {argument}: 'new:1': choose a name without ':', at which fairseq splits paths (all options"
    assert printed.startswith(f"amlp-fairseq {command}: {message}")
    assert not list(tmp_path.iterdir())
