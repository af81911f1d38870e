"""Models that are loaded and searched again and again, also in vain, take no more memory than the first ones."""

from __future__ import annotations

import json
import sys

import allocated
import commands
import pytest

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
    program = sys.executable, "-c", PROGRAM, commands.ROOT / "examples/models", ROUNDS
    path = f"{commands.ROOT}:{commands.ROOT / 'tests'}"
    loads, searches = map(json.loads, commands.fresh(*program, env={"PYTHONPATH": path}).stdout.splitlines())
    # Blocks of malloc are a little larger than what is asked for; by how much depends on what was free. Models have
    # millions of bytes; a round of searches has 12 calls, and the smallest blocks have 32 bytes.
    for (used, resident, blocks), bound in ((loads, 1000), (searches, 100)):
        assert used < bound * ROUNDS
        assert blocks < 4 * ROUNDS
        assert resident < 50_000 * ROUNDS
