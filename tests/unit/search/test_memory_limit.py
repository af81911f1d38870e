"""The estimate of a search's memory against its peak, and of free memory on made-up systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memory as measured
import pytest
import torch
import toy

from amlp_fairseq.common.host_memory import KEPT
from amlp_fairseq.search import iterative_refinement, memory_limit, multiword_beam_search
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

CPU = torch.device("cpu")


def search(
    words: int, beam: int, directions: int, models: int = 1, sentences: int = 2, use_engine: bool = False
) -> tuple[Any, Any]:
    """A search and a batch for it."""
    task = toy.task(words, num_directions=directions)
    made = [toy.model(task, seed) for seed in range(models)]
    for model in made:
        model.make_generation_fast_()
    options = SearchOptions(beam_size=beam, max_len_b=2 * directions)
    batch = toy.batch(toy.random_sources(sentences, 12), task.source_dictionary)
    generator = MultiwordBeamSearch(made, task.target_dictionary, task.order, options, use_engine=use_engine)
    return generator, batch


@pytest.mark.parametrize(
    ("words", "beam", "directions", "models"),
    [(20_000, 4, 1, 1), (20_000, 4, 2, 1), (20_000, 3, 1, 3), (300, 100, 2, 1), (300, 100, 4, 2), (12, 300, 1, 1)],
)
def test_no_search_takes_less(
    words: int, beam: int, directions: int, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak is between the estimate and three times as much, so that accepted searches usually fit."""
    needed: list[int] = []
    monkeypatch.setattr(multiword_beam_search, "refuse_too_large", lambda number, *_: needed.append(number))
    generator, batch = search(words, beam, directions, models)
    generator.generate([], batch)  # weights are packed
    taken = measured.peak_memory(lambda: generator.generate([], batch))
    assert needed[0] <= taken < 3 * needed[0]


@pytest.mark.parametrize(("use_engine", "words"), [(True, 9000), (False, 3000)])
def test_what_does_not_fit_is_refused_before_it_starts(
    use_engine: bool, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, batch = search(words, beam=40, directions=2, sentences=3, use_engine=use_engine)
    encoder: list[Any] = []
    generator.models[0].encoder.register_forward_pre_hook(lambda *call: encoder.append(call))
    monkeypatch.setattr(memory_limit, "GIB", 1 << 20)
    monkeypatch.setattr(memory_limit, "free_bytes", lambda device: 6 << 20)
    message = r"^--beam 40 with 3 sentence\(s\) in a batch needs at least (\S+) GiB, and there are 6\.0 \(cpu\): take a"
    with pytest.raises(ValueError, match=message):
        generator.generate([], batch)
    assert not encoder
    monkeypatch.setattr(memory_limit, "free_bytes", lambda device: 6 << 30)
    assert len(generator.generate([], batch)) == 3


def refinement(words: int, beam: int) -> tuple[IterativeRefinement, Any, Any]:
    """A CMLMC model and two sources."""
    model = toy.cmlmc(words=words)
    model.make_generation_fast_()
    target = toy.dictionary(words)
    generator = IterativeRefinement(target, max_iter=1, beam_size=beam, use_engine=False)
    batch = toy.batch([[target.bos(), *source] for source in toy.random_sources(2, 12)], target)
    return generator, model, batch


@pytest.mark.parametrize(("words", "beam"), [(20_000, 2), (3000, 9)])
def test_no_refinement_takes_less(words: int, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    monkeypatch.setattr(iterative_refinement, "refuse_too_large", lambda number, *_: needed.append(number))
    generator, model, batch = refinement(words, beam)
    generator.generate([model], batch)  # weights are packed
    taken = measured.peak_memory(lambda: generator.generate([model], batch))
    assert needed[0] <= taken < 3 * needed[0]


def test_a_refinement_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, model, batch = refinement(words=20_000, beam=9)
    monkeypatch.setattr(memory_limit, "GIB", 1 << 20)
    monkeypatch.setattr(memory_limit, "free_bytes", lambda device: 6 << 20)
    message = r"^--iter-decode-with-beam 9 with 2 sentence\(s\) .* \(cpu\): take a smaller --iter-decode-with-beam, or"
    with pytest.raises(ValueError, match=message):
        generator.generate([model], batch)
    monkeypatch.setattr(memory_limit, "free_bytes", lambda device: 6 << 30)
    assert len(generator.generate([model], batch)) == 2


def test_beam_2000_and_a_large_dictionary() -> None:
    """The memory of all pairs of candidates, for each row."""
    needed = memory_limit.needed_bytes(2000, 2, 2000, 2000, models=1, itemsize=4, row_bytes=0)
    assert needed // memory_limit.GIB == 29
    assert memory_limit.needed_bytes(4, 2, 2000, 4, models=1, itemsize=4, row_bytes=0) < 1 << 20


def files(root: Path, **contents: str) -> Path:
    for name, content in contents.items():
        path = root / name.replace("__", "/").replace("_d_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


MEMINFO = "MemFree:  1 kB\nMemAvailable:    10000 kB\nSwapFree:         2000 kB\nHugePages_Free: 0\n"


def test_there_is_what_the_system_and_the_groups_leave(tmp_path: Path) -> None:
    root = files(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/one/two\n")
    assert memory_limit.free_bytes(CPU, root) == 12_000 * 1024 + KEPT
    group = "sys__fs__cgroup__one"
    files(root, **{f"{group}__memory_d_max": "5000000\n", f"{group}__memory_d_current": "4000000\n"})
    files(root, **{f"{group}__memory_d_stat": "anon 7\ninactive_file 500\n", f"{group}__two__memory_d_max": "max\n"})
    assert memory_limit.free_bytes(CPU, root) == 1_000_500 + KEPT
    files(root, proc__self__cgroup="9:name=systemd:/\n4:cpu,memory_not:/one\n3:memory:/one\n0::/\n")
    group = "sys__fs__cgroup__memory__one__memory_d_"
    files(root, **{f"{group}limit_in_bytes": "900\n", f"{group}usage_in_bytes": "1000\n"})
    files(root, **{f"{group}stat": "inactive_file 9\ntotal_inactive_file 50\n"})
    assert memory_limit.free_bytes(CPU, root) == KEPT


def test_nothing_is_known_of_other_systems(tmp_path: Path) -> None:
    assert memory_limit.free_bytes(CPU, tmp_path) is None
    files(tmp_path, proc__meminfo="MemFree: 3 kB\n", proc__self__cgroup="")
    assert memory_limit.free_bytes(CPU, tmp_path) is None


def test_this_system() -> None:
    free = memory_limit.free_bytes(CPU)
    assert free is None or KEPT <= free < 1 << 50
