"""Decoder calls by CUDA graphs against plain calls: graphs are recorded on a CPU, and replayed on the same memory."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import graph_emulator
import pytest
import torch
import toy
from torch.utils._python_dispatch import TorchDispatchMode

from amlp_fairseq.attention.registry import supporting
from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.decoding.inference_model import InferenceModel
from amlp_fairseq.decoding.inference_nat import inference_nat
from amlp_fairseq.decoding.row_permutation import RowPermutation
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

#: Seed of a random model that writes long sentences.
SEED = {"concat": {"seed": 1}}
MODELS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    **{f"{h}-{c}": ((h, c), {}) for h, c in [(1, 1), (1, 3), (2, 1), (2, 2), (4, 1)]},
    **{f"mask {name}": ((2, 2), {"decoder_attention_mask": name}) for name in ("vanilla", "independent-directions")},
    **{
        f"{name} {h}-{c}": (
            (h, c),
            {"decoder_self_attention_type": name, "decoder_kernel_size_list": [k], **SEED.get(name, {})},
        )
        for name in supporting("causal self")
        for h, c, k in ([(1, 1, 4)] if name == "cnn" else [(1, 1, 3), (2, 2, 5)])
    },
    **{
        f"cross {name}": ((1, 1), {"decoder_cross_attention_type": name, "decoder_kernel_size_list": [3]})
        for name in supporting("causal cross")
    },
    "norms in front": ((2, 1), {"decoder_normalize_before": True, "activation_fn": "gelu"}),
}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return graph_emulator.install(monkeypatch)


def build(name: str = "2-1", **options: Any) -> tuple[Any, Any]:
    (h, c), given = MODELS[name]
    task = toy.task(num_directions=h, words_per_direction=c)
    model = toy.model(task, **given, **options)
    model._is_generation_fast = True  # as in fairseq-generate
    return task, model


def sources(task: Any, count: int, seed: int) -> dict[str, Any]:
    return toy.batch(toy.random_sources(count, 12, seed), task.src_dict)


@pytest.mark.parametrize(
    ("name", "beam", "alignment"),
    [(name, *((1, None), (3, "hard"))[number % 2]) for number, name in enumerate(MODELS)],
)
def test_captured_steps_find_what_plain_steps_find(
    name: str, beam: int, alignment: str | None, captures: list[Any]
) -> None:
    """Successive batches of several sizes, so that graphs are used again; sentences that end early leave, and long ones
    need more slots."""
    task, model = build(name)
    if name.startswith("cross") and name != "cross softmax":
        alignment = None  # they have no weights

    def found(cuda_graphs: bool) -> list[dict[str, Any]]:
        options = SearchOptions(beam_size=beam, max_len_a=4, max_len_b=1, alignment=alignment, cuda_graphs=cuda_graphs)
        search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
        batches = [sources(task, count, seed) for seed, count in enumerate((5, 3, 1, 5, 8))]
        return [each for batch in batches for found in search.generate([model], batch) for each in found]

    plain = found(False)
    assert not captures
    captured = found(True)
    assert captures
    assert max(len(each["tokens"]) for each in plain) > 16 > min(len(each["tokens"]) for each in plain)
    for ours, expected in zip(captured, plain, strict=True):
        assert ours["tokens"].tolist() == expected["tokens"].tolist()
        assert ours["steps"] == expected["steps"]
        assert list(ours["alignment"]) == list(expected["alignment"])
        torch.testing.assert_close(ours["positional_scores"], expected["positional_scores"], atol=1e-5, rtol=0)


def test_a_shape_is_captured_once_while_it_is_among_the_last(captures: list[Any]) -> None:
    task, model = build()
    options = SearchOptions(max_len_a=4, max_len_b=1, cuda_graphs=True)
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, options)
    search.generate([model], sources(task, 200, 0))  # which become fewer and fewer
    first = len(captures)
    assert first > 8
    search.generate([model], sources(task, 200, 0))
    assert len(captures) == first
    graphs = search.inference_models([model])[0].graph_decoder.graphs.by_shape
    for beam in range(1, 2 * cuda_graphs.MAX_GRAPHS):
        search.options = replace(search.options, beam_size=beam)
        search.generate([model], sources(task, 1, 0))
    assert len(graphs) == cuda_graphs.MAX_GRAPHS


class Copies(TorchDispatchMode):
    """The largest number of elements that one operator copies."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("copy_", "clone", "index_select", "gather"):
            self.most = max(self.most, result.numel())
        return result


def test_steps_after_which_no_row_moves_copy_no_states(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = build("1-1")
    moved: list[int] = []
    monkeypatch.setattr(RowPermutation, "apply", lambda self, table, dim=0: moved.append(table.numel()))
    search = MultiwordBeamSearch(
        [model], task.tgt_dict, task.order, SearchOptions(beam_size=1, min_len=9, max_len_b=9, cuda_graphs=True)
    )
    search.generate([model], sources(task, 1, 0))
    assert not moved
    (stack, *_) = captures[0].__self__.states.stacks
    with torch.inference_mode(), Copies() as copies:
        captures[0]()
    assert 0 < copies.most < stack[0].numel()


def test_rows_that_move_take_their_written_slots_with_them(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only written slots are copied."""
    task, model = build("1-1")
    slots: list[int] = []
    apply = RowPermutation.apply

    def counted(self: RowPermutation, table: torch.Tensor, dim: int = 0) -> torch.Tensor:
        slots.append(table.size(-2))
        return apply(self, table, dim)

    monkeypatch.setattr(RowPermutation, "apply", counted)
    options = SearchOptions(beam_size=3, min_len=9, max_len_b=9, cuda_graphs=True)
    MultiwordBeamSearch([model], task.tgt_dict, task.order, options).generate([model], sources(task, 1, 0))
    assert slots == list(range(1, len(slots) + 1))
    assert len(slots) > 5


class Device:
    """Replaces torch.cuda while a graph is captured, and records calls with their devices."""

    def __init__(self) -> None:
        self.current, self.seen = "cuda:0", []  # type: ignore[var-annotated]
        self.CUDAGraph = lambda: Namespace(replay=None, pool=lambda: "the pool")

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, str(device)
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: Any) -> Iterator[None]:
        self.seen.append(("graph", self.current, pool))
        yield

    def __getattr__(self, name: str) -> Any:  # Stream, current_stream, stream
        stream = MagicMock(name=name)

        def noted(*arguments: Any) -> Any:
            self.seen.append((name, self.current))
            return stream

        return noted


def test_graphs_are_captured_on_the_decoders_device_and_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(cuda_graphs.torch, "cuda", device)
    graphs = cuda_graphs.Graphs(torch.device("cuda:1"))
    for _ in range(2):
        _, result = graphs.capture(lambda: device.current)
        assert result == "cuda:1"
    assert device.current == "cuda:0"
    assert {where for _, where, *_ in device.seen} == {"cuda:1"}
    assert [pool for name, _, *pool in device.seen if name == "graph"] == [[None], ["the pool"]]


def test_models_in_training_are_not_captured(captures: list[Any]) -> None:
    task, model = build()
    model._is_generation_fast = False
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, SearchOptions(max_len_b=9, cuda_graphs=True))
    search.generate([model], sources(task, 2, 0))
    assert not captures


def test_the_option_reaches_the_search() -> None:
    task = toy.task(num_directions=1, cuda_graphs=True)
    model = toy.model(task)
    model._is_generation_fast = True
    with pytest.raises(ValueError, match="--cuda-graphs is for cuda"):
        task.build_generator([model], Namespace()).generate([model], sources(task, 1, 0))


def test_what_cannot_be_captured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = build()
    with pytest.raises(ValueError, match=r"--cuda-graphs is for cuda .*, not for InterleavedDecoder on cpu"):
        InferenceModel(model, None, cuda_graphs=True)
    monkeypatch.setattr(cuda_graphs, "CAPTURING", ("cpu",))
    with pytest.raises(
        ValueError, match="--cuda-graphs is for cpu and decoders of amlp_fairseq without --retain-dropout"
    ):
        InferenceModel(toy.stock_transformer(task), None, cuda_graphs=True)
    with pytest.raises(ValueError, match="--cuda-graphs is for cpu and decoders of cmlmc_transformer, not for"):
        inference_nat(toy.stock_transformer(task), None, cuda_graphs=True)


@pytest.mark.parametrize(
    ("attention", "count"),
    [*((name, 1) for name in sorted({*supporting("noncausal self"), *supporting("noncausal cross")})), ("softmax", 2)],
)
def test_captured_passes_refine_as_plain_passes_do(attention: str, count: int, captures: list[Any]) -> None:
    options = {
        f"decoder_{place}_attention_type": attention
        for place in ("self", "cross")
        if attention in supporting(f"noncausal {place}")
    }
    models = [toy.cmlmc(seed, **options, decoder_kernel_size_list=[3]) for seed in range(count)]
    for model in models:
        model._is_generation_fast = True
    words = toy.dictionary(12)

    def found(cuda_graphs: bool) -> list[dict[str, Any]]:
        search = IterativeRefinement(words, max_iter=5, beam_size=2, cuda_graphs=cuda_graphs)
        batches = [
            toy.batch([[words.bos(), *source] for source in toy.random_sources(size, 12, seed)], words)
            for seed, size in enumerate((6, 2, 5, 6, 5))
        ]
        return [hypothesis for batch in batches for (hypothesis,) in search.generate(models, batch)]

    plain = found(False)
    assert not captures
    captured = found(True)
    assert captures
    for ours, expected in zip(captured, plain, strict=True):
        assert ours["tokens"].tolist() == expected["tokens"].tolist()
        assert ours["steps"] == expected["steps"]
        torch.testing.assert_close(ours["positional_scores"], expected["positional_scores"], atol=1e-5, rtol=0)
