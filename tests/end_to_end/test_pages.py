"""What pages tell users to type, typed literally."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import commands

from amlp_fairseq.recipes.results import read_results


def blocks(page: str) -> list[str]:
    """The code blocks of a page that name no language."""
    text = (commands.ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_your_own_corpus(tmp_path: Path) -> None:
    """examples/own_corpus: from an empty folder to scores and translations."""
    script = "set -euo pipefail\n" + "\n".join(blocks("examples/own_corpus/README.md"))
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for row, distilled in (("transformer", False), ("ibdecoder", True)):
        lines = read_results(tmp_path / row / "results.jsonl")
        assert [line["decoding"] for line in lines] == ["beam 4", "greedy"]
        for line in lines:
            assert (line["system"], line["distilled"], line["sentences"]) == (row, distilled, 20)
            assert (line["data"], line["scale"], line["training_options"]) == ("data", "embedded", "--max-update 20")
        translations = (tmp_path / row / "generated.test.beam-4.hyp").read_text(encoding="utf-8")
        assert translations.count("\n") == 20
    translated = (tmp_path / "translated.txt").read_text(encoding="utf-8")
    assert len(commands.lines(translated, "H")) == 20
