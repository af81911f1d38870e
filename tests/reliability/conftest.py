"""Small models of all systems, trained for two updates on random sentences; one set for all tests and workers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import commands
import pytest
from filelock import FileLock

from amlp_fairseq.training import config

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


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of pytest-xdist see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "systems"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def data(shared: Path) -> Path:
    """A folder of fairseq-preprocess: random sentences, of which every target is its source."""
    with FileLock(shared / "data.lock"):
        if not (shared / "data").exists():
            rng, raw = random.Random(1), shared / "raw"
            shutil.rmtree(raw, ignore_errors=True)
            raw.mkdir()
            for split, count in {"train": 100, "valid": 11, "test": 21}.items():
                text = "".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + "\n" for _ in range(count))
                for language in ("en", "de"):
                    (raw / f"{split}.{language}").write_text(text, encoding="utf-8")
            commands.preprocess(raw, shared / "part").rename(shared / "data")
    return shared / "data"


@pytest.fixture(scope="session")
def system(data: Path, shared: Path) -> Callable[[str], System]:
    """The system of a row, trained when it is first asked for."""

    def trained(row: str) -> System:
        recipe = config.load(row, "embedded", "embedded")
        folder = shared / row
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                words = [data, "--corpus", "embedded", "--row", row, "--scale", "embedded", *TINY]
                commands.run("amlp_fairseq.training.train", *words, "--save-dir", f"{folder}.part")
                Path(f"{folder}.part").rename(folder)
        decoding = next(iter(recipe.generate.values()))
        options = config.flags({**recipe.task, **decoding}, row)
        return System(row, data, folder / "checkpoint_last.pt", options)

    return trained


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
