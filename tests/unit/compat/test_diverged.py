"""A training that diverges: one line and a mark in its folder, from which evaluate makes results."""

from __future__ import annotations

import json
from pathlib import Path

import commands
import pytest
from torch.multiprocessing import ProcessRaisedException

from amlp_fairseq.compat import diverged
from amlp_fairseq.training.results import read_results

pytestmark = pytest.mark.slow


def test_a_training_that_diverges_is_a_result(tmp_path: Path) -> None:
    """Which a later training in its folder takes away."""
    for part in ("train", "valid", "test"):
        for language in ("en", "de"):
            (tmp_path / f"{part}.{language}").write_text("a b c\nb c\n" * 4, encoding="utf-8")
    data, save = tmp_path / "data", tmp_path / "save"
    prefixes = [f"--{part}pref={tmp_path / part}" for part in ("train", "valid", "test")]
    commands.run("fairseq_cli.preprocess", "-s", "en", "-t", "de", "--joined-dictionary", "--destdir", data, *prefixes)
    text = {"name": "n", "corpus": "", "languages": ["en", "de"], "post_process": None, "tokenizer": None}
    (data / "text.json").write_text(json.dumps(text | {"valid_set": "v", "test_set": "t"}), encoding="utf-8")
    words = ["train", data, "--row", "dynamicconv", "--scale", "embedded", "--save-dir", save, "--cpu"]
    words += ["--max-update", 5, "--warmup-updates", 1]
    printed = commands.run("amlp_fairseq.cli.main", *words, "--lr", "1e30", check=False)
    assert "Traceback" not in printed
    assert "diverged after" in printed.splitlines()[-1]
    updates = diverged.diverged(save)
    assert updates is not None
    assert updates >= 1
    commands.run("amlp_fairseq.evaluation.evaluate", save, data, "--cpu", "--subset", "valid,test")
    lines = read_results(save / "results.jsonl")
    assert [(line["split"], line["diverges"], line["updates"]) for line in lines] == [
        ("valid", True, updates),
        ("test", True, updates),
    ]
    (save / "checkpoint_last.pt").unlink(missing_ok=True)  # its weights are of no use any more
    commands.run("amlp_fairseq.cli.main", *words)
    assert diverged.diverged(save) is None


def test_the_line_of_a_process_that_fairseq_has_started() -> None:
    text = "\n\n-- Process 0 terminated with the following error:\n{}: it is infinite\n"
    for name, told in (("amlp_fairseq.compat.diverged.Diverged", "it is infinite"), ("ValueError", None)):
        assert diverged.told_by(ProcessRaisedException(text.format(name), 0, 1)) == told
