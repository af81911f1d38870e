"""Trainings and decodings in bfloat16 over ever new shapes keep few of the products that are compiled for them."""

from __future__ import annotations

import random
import sys
from multiprocessing.queues import Queue
from pathlib import Path

import allocated
import commands
import pytest
import torch

UPDATES = 60


def used_after_products(found: Queue[list[int]]) -> None:
    """Multiply ever other numbers of rows in bfloat16, as steps of decoding do, and give back the bytes in use."""
    from amlp_fairseq.decoding.packed_linear import pack

    torch.set_num_threads(1)
    multiply = pack(torch.ones(256, 256), None, "bfloat16")
    used = []
    for rows in range(1, 401):
        multiply(torch.ones(rows, 256))
        used.append(allocated.used_bytes())
    found.put(used)


def used_after_updates(words: list[str], found: Queue[list[int]]) -> None:
    """Run fairseq-train and give back the bytes of malloc's blocks in use after every update."""
    from fairseq.trainer import Trainer
    from fairseq_cli import train

    import amlp_fairseq.plugin  # noqa: F401  (replaces train_step)

    update, used = Trainer.train_step, []

    def train_step(*args: object, **kwargs: object) -> object:
        result = update(*args, **kwargs)
        used.append(allocated.used_bytes())
        return result

    Trainer.train_step = train_step
    torch.set_num_threads(1)
    sys.argv = ["fairseq-train", *words]
    train.cli_main()
    found.put(used)


pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported() or not allocated.KNOWN,
    reason="oneDNN's products in bfloat16, glibc's malloc",
)


def test_memory_in_use_is_level_while_rows_are_multiplied() -> None:
    found: Queue[list[int]] = commands.forks.Queue()
    child = commands.forks.Process(target=used_after_products, args=(found,))
    child.start()
    used = found.get(timeout=300)
    child.join()
    assert max(used[200:]) - used[0] <= 1.1 * (max(used[:200]) - used[0])


def test_memory_in_use_is_level(tmp_path: Path) -> None:
    rng = random.Random(1)
    lengths = [(length, length + rng.randint(0, 9)) for length in range(3, 3 + UPDATES)]
    for name, count in (("train", UPDATES), ("valid", 1)):
        for side, language in enumerate(("a", "b")):
            lines = [" ".join(rng.choices("uvwxyz", k=pair[side])) + "\n" for pair in lengths[:count]]
            (tmp_path / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
    sets = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid", "--joined-dictionary"]
    data = tmp_path / "data"
    commands.run("fairseq_cli.preprocess", "-s", "a", "-t", "b", *sets, "--destdir", data)
    words = [str(data), "--user-dir", str(commands.PLUGIN), "--arch", "transformer", "--bf16", *commands.TRAINING]
    for side in ("encoder", "decoder"):
        words += [f"--{side}-layers", "1", f"--{side}-embed-dim", "32", f"--{side}-ffn-embed-dim", "64"]
        words += [f"--{side}-attention-heads", "2"]
    words += ["--batch-size", "1", "--required-batch-size-multiple", "1", "--max-update", str(UPDATES)]
    words += ["--no-save", "--disable-validation", "--lr", "0.001"]
    found: Queue[list[int]] = commands.forks.Queue()
    child = commands.forks.Process(target=used_after_updates, args=(words, found))
    child.start()
    used = found.get(timeout=300)
    child.join()
    assert len(used) == UPDATES
    assert max(used[UPDATES // 2 :]) <= 1.1 * max(used[: UPDATES // 2])
