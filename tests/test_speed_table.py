"""README.md's table of decoding speed is what the committed result says."""

from __future__ import annotations

import json

import commands

RESULT = commands.ROOT / "docs/results/benchmark_decoding.json"


def test_readme_has_the_committed_numbers() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    table = commands.load_script("speed_table").speed_table(result)
    readme = (commands.ROOT / "README.md").read_text(encoding="utf-8")
    assert table in readme
    assert result["clean"], "measured with changes that are not committed"
    assert all(row["system"] in table for row in result["decoding"] if row["batch"] == 1)
