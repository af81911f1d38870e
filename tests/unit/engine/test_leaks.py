"""The memory of models: that of one, and no more after many loads and searches, also in vain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import allocated
import commands
import numpy as np
import pytest
from safetensors.numpy import save_file

from amlp_fairseq.engine.safetensors import Tensors

MODELS = commands.ROOT / "examples/models"

#: Prints for loads, then for searches, by how much so many rounds increase the bytes of malloc in use, the bytes that
#: are resident, and Python's blocks. As many rounds come before, of which something may be kept for the next ones.
PROGRAM = """
import gc, json, sys
from pathlib import Path
import allocated
from amlp_fairseq.engine.model import Model, ParallelModel, RefinementOptions, SearchOptions

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
ar, cmlmc = (json.loads((folder / name / "config.json").read_text()) for name in ("ar", "cmlmc"))
other = json.loads(json.dumps(ar))
other["description"]["decoder"]["layers"][-1]["inner_width"] += 1  # is found out when all else has been built
sources = [[4, 9, 7, 5, 20, 11, 2], [6, 2]]
beam, greedy = (SearchOptions(beam=size, max_len_b=6) for size in (3, 1))


def refused(error, function, *arguments):
    try:
        function(*arguments)
    except error:
        return
    raise AssertionError("nothing is refused")


def no_draft(*_):
    raise LookupError


def load():
    refused(ValueError, Model.of_folder, folder / "ar", other)
    loaded = []
    for dtype in ("float32", "int8"):
        model = Model.of_folder(folder / "ar", ar, dtype)
        model.search(sources, beam, 2)  # threads, which end with the model
        loaded.append((model, ParallelModel.of_folder(folder / "cmlmc", cmlmc, dtype)))
    return loaded


models = load()


def search():
    for model, parallel in models:
        model.search(sources, SearchOptions(beam=3, max_len_b=6, no_repeat_ngram=2, align=True))
        model.search(sources, greedy, 1, lambda *_: [5, 6], 2)
        model.score(sources, [[[5, 6]], [[7]]], beam)
        refused(ValueError, model.search, [[4, 1 << 20, 2]], beam)
        refused(LookupError, model.search, sources, greedy, 1, no_draft, 2)
        parallel.search(sources, RefinementOptions(2, 2))
        refused(ValueError, parallel.search, [[1 << 20, 2]], RefinementOptions(2, 2))


def sizes():
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) << 12
    return allocated.used_bytes(), resident, sys.getallocatedblocks()


for work in load, search:
    for _ in range(rounds):
        work()
    before = sizes()
    for _ in range(rounds):
        work()
    print(json.dumps([more - less for less, more in zip(before, sizes())]))
"""
ROUNDS = 50


@pytest.mark.skipif(not allocated.KNOWN, reason="glibc's malloc")
def test_no_memory_is_lost() -> None:
    program = sys.executable, "-c", PROGRAM, MODELS, ROUNDS
    path = f"{commands.ROOT}:{commands.ROOT / 'tests'}"
    loads, searches = map(json.loads, commands.fresh(*program, env={"PYTHONPATH": path}).stdout.splitlines())
    # Blocks of malloc are a little larger than what is asked for; by how much depends on what was free. Models have
    # millions of bytes; a round of searches has 12 calls, and the smallest blocks have 32 bytes.
    for (used, resident, blocks), bound in ((loads, 1000), (searches, 100)):
        assert used < bound * ROUNDS
        assert blocks < 4 * ROUNDS
        assert resident < 50_000 * ROUNDS


#: Prints by how many bytes loading a model increases the largest resident set.
LOAD = """
import json, sys
from pathlib import Path
from amlp_fairseq.engine.isa import library
from amlp_fairseq.engine.model import Model

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())


def status(name):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


library()
Path("/proc/self/clear_refs").write_text("5")  # the largest resident set is now the present one
before = status("VmRSS:")
model = Model.of_folder(folder, config)
print(status("VmHWM:") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc of Linux")
def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    """A float32 model is loaded tensor by tensor, and its embeddings are shared."""
    inner = 16384
    config = json.loads((MODELS / "ar/config.json").read_text(encoding="utf-8"))
    config["weights"] = "float32"
    for side in ("encoder", "decoder"):
        for layer in config["description"][side]["layers"]:
            layer["inner_width"] = inner
    weights = dict(Tensors(MODELS / "ar/model.safetensors"))
    for name in weights:
        if ".fc1." in name or name.endswith(".fc2.weight"):
            shape = [inner if length == 256 else length for length in weights[name].shape]
            weights[name] = np.ones(shape, np.float32)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    size, largest = (tmp_path / "model.safetensors").stat().st_size, max(weight.nbytes for weight in weights.values())
    peak = int(commands.fresh(sys.executable, "-c", LOAD, tmp_path).stdout)
    # Each matrix is in whole pages of 2 MiB; beside them there are one in the order of the file, and small things.
    assert size < peak < size + 8 * (2 << 20) + largest + (8 << 20) < 2 * size
