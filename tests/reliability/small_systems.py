"""Small models of all systems, which the fixture ``system`` of conftest.py trains."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import commands
import pytest

#: Rows of configs/rows: each kind of decoder, attention and search.
SYSTEMS = (
    *("ibdecoder", "ibdecoder_sa", "imdecoder", "ibdecoder_middle_to_side", "vanilla_sa_2", "aan", "lightconv"),
    *("dynamicconv", "amlp_transformer", "transformer_abc", "transformer_local", "cmlm", "cmlmc", "cmlmc_amlp"),
    *("cmlmc_amlp_cov", "cmlmc_abc", "cmlmc_local"),
)
#: One of each kind of decoder, state and search: for what starts processes, which the long tests do with all.
KINDS = ("ibdecoder", "ibdecoder_middle_to_side", "aan", "dynamicconv", "cmlm", "cmlmc_amlp_cov")
OF_EACH_KIND = [row if row in KINDS else pytest.param(row, marks=pytest.mark.long) for row in SYSTEMS]
WORDS = [f"w{i}" for i in range(30)]
TINY = [
    *(
        word
        for side in ("encoder", "decoder")
        for word in (f"--{side}-embed-dim", "16", f"--{side}-ffn-embed-dim", "32")
    ),
    *(
        "--max-source-positions",
        "12000",
        "--max-target-positions",
        "12000",
        "--max-update",
        "2",
        "--warmup-updates",
        "1",
    ),
    *("--max-tokens", "200", "--cpu", "--no-progress-bar"),
]


@dataclass(frozen=True)
class System:
    """A trained row: its checkpoint, and the options that decode it."""

    row: str
    data: Path
    checkpoint: Path
    decoding: list[str]

    @property
    def short(self) -> list[str]:
        """What keeps outputs short; iterative refinement takes its lengths from the model."""
        return [] if self.row.startswith("cmlm") else ["--max-len-b", "8"]

    @property
    def options(self) -> list[str]:
        """What fairseq-generate and fairseq-interactive are told."""
        path = ["--path", str(self.checkpoint), "--user-dir", str(commands.PLUGIN)]
        return [str(self.data), *path, *self.decoding, *self.short, "--cpu"]


def evaluable(trained: System, data: Path, folder: Path) -> tuple[Path, Path]:
    """What amlp-fairseq evaluate needs: checkpoints to average, and raw references."""
    shutil.copytree(data, folder / "data")
    shutil.copytree(data.parent / "raw", folder / "data/raw")
    text = {"name": "random", "corpus": "embedded", "languages": ["en", "de"], "post_process": None}
    text |= {"tokenizer": None, "valid_set": "valid", "test_set": "test"}
    (folder / "data/text.json").write_text(json.dumps(text), encoding="utf-8")
    (folder / "checkpoints").mkdir()
    shutil.copy(trained.checkpoint.with_name("recipe.yaml"), folder / "checkpoints")
    for name in ("checkpoint_1_2.pt", "checkpoint_last.pt"):
        shutil.copy(trained.checkpoint, folder / "checkpoints" / name)
    return folder / "checkpoints", folder / "data"
