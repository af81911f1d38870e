"""Small models of all systems, trained for two updates on random sentences; one set for all tests and workers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from filelock import FileLock
from small_systems import TINY, WORDS, System

from amlp_fairseq.training import config


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
