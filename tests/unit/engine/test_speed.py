"""What makes the engine fast, with each instruction set of this processor, beside NumPy; threads and processes."""

from __future__ import annotations

import os
from types import ModuleType

import commands
import numpy as np
import pytest
import toy

from amlp_fairseq import Translator
from amlp_fairseq.engine import isa
from amlp_fairseq.engine.model import SearchOptions
from amlp_fairseq.models.description import describe
from amlp_fairseq.translator.engine_backend import shared_out

SOURCES = [[4, 9, 7, 5, 20, 11, 2], [6, 2], [21, 8, 8, 13, 2]]


def rounded_to_bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 5, 3), (7, 64, 70), (50, 33, 129), (75, 150, 200)])
@pytest.mark.skipif(not hasattr(isa.library(), "bfloat16_linear"), reason="this processor has no bfloat16")
def test_bfloat16_products(rows: int, inputs: int, outputs: int) -> None:
    """Products of inputs and weights that are rounded to 8 bits are exact; their sums are rounded to 24 bits."""
    library = isa.library()
    random = np.random.default_rng(rows)
    weight, bias, x = (
        random.standard_normal(size).astype(np.float32) for size in ((outputs, inputs), outputs, (rows, inputs))
    )
    exact = rounded_to_bfloat16(x).astype(np.float64) @ rounded_to_bfloat16(weight).T.astype(np.float64) + bias
    terms = np.abs(rounded_to_bfloat16(x)) @ np.abs(rounded_to_bfloat16(weight)).T + np.abs(bias)
    linear = library.bfloat16_linear(weight, bias)
    for relu in (False, True):
        found = linear.product(x, relu)
        error = np.abs(found - (np.maximum(exact, 0) if relu else exact))
        assert (error <= (inputs + 1) * 2.0**-24 * terms).all()


@pytest.mark.parametrize("name", ["int8_linear", "bfloat16_linear"])
def test_a_row_of_a_product_does_not_depend_on_the_others(name: str, library: ModuleType) -> None:
    """Bit for bit: rows of all tiles, alone and in threads, of which one has a part of the outputs."""
    if not hasattr(library, name):
        pytest.skip("this instruction set has no bfloat16")
    random = np.random.default_rng(0)
    x, weight, bias = (random.standard_normal(size).astype(np.float32) for size in ((90, 300), (340, 300), 340))
    integers = (weight * 40).clip(-127, 127).astype(np.int8)
    weights = (integers, np.abs(bias), bias) if name == "int8_linear" else (weight, bias)
    linear = getattr(library, name)(*weights)
    expected = np.concatenate([linear.product(row, relu=True) for row in x])
    for rows in (7, 8, 15, 16, 17, 24, 33, 48, 64, 69, 77, 90):
        np.testing.assert_array_equal(linear.product(x[:rows], relu=True), expected[:rows])
    for threads in (2, 3):
        np.testing.assert_array_equal(linear.product(x, relu=True, threads=threads), expected)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("keys", "heads", "width"), [(1, 1, 8), (9, 3, 20), (40, 2, 128)])
def test_attention_to_the_words_so_far(keys: int, heads: int, width: int, half: bool, library: ModuleType) -> None:
    """Queries of 1 standard deviation; those of float16 have 11 bits, where the processor converts them."""
    random = np.random.default_rng(keys)
    q = random.standard_normal((heads, width)).astype(np.float32)
    kv = random.standard_normal((2, keys, heads, width)).astype(np.float32)
    kv[1, 0] *= 1e6  # beyond float16's largest number, as which it counts
    kept = np.clip(kv, -65504, 65504).astype(np.float16) if half and "generic" not in library.__name__ else kv
    k, v = kept.astype(np.float64)
    scores = np.einsum("hd,shd->hs", q, k)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    exact = np.einsum("hs,shd->hd", weights / weights.sum(1, keepdims=True), v)
    size = np.abs(v).max()
    # sums of `width` products, which weights follow exponentially, and of `keys` values
    bound = (2 * width * np.abs(scores).max() + keys + 8) * 2.0**-24 * size
    np.testing.assert_allclose(library.cached_attention(q, kv, half), exact, rtol=0, atol=bound)


def test_the_best_words_of_a_row(library: ModuleType) -> None:
    """Rows of several blocks, ascending, descending, with ties, with words that are excluded."""
    random = np.random.default_rng(0)
    row = random.standard_normal(1300).astype(np.float32) * 5
    rows = [row, np.sort(row), np.sort(row)[::-1].copy(), np.round(row), row[:7], np.full(1300, -np.inf, np.float32)]
    rows.append(np.where(np.arange(1300) < 700, -np.inf, row).astype(np.float32))
    for each in rows:
        tokens, total = library.best_of_row(each, 5)
        assert tokens == np.argsort(-each, kind="stable")[:5].tolist()
        largest = each.max()
        exact = largest if largest == -np.inf else largest + np.log(np.exp(each.astype(np.float64) - largest).sum())
        assert total == pytest.approx(exact, rel=4 * 2**-24, abs=4 * 2**-24)


def test_a_search_in_a_process_that_was_forked(library: ModuleType) -> None:
    """It has none of the engine's threads."""
    task = toy.task(24, num_directions=2, words_per_direction=1)
    model = toy.model(task)
    engine = library.Engine(describe(model), {name: each.numpy() for name, each in model.state_dict().items()}, False)
    settings = {**vars(SearchOptions()), "beam": 4, "max_len_b": 12}

    def found() -> list[list[int]]:
        return [hypotheses[0].tokens for hypotheses in engine.search(SOURCES, settings, 2)]

    expected = found()
    child = os.fork()
    if child == 0:
        os._exit(0 if found() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found() == expected


def test_batches_side_by_side_change_nothing() -> None:
    texts = [f"The old doctor sees {count} cars." for count in range(40)]  # more than a batch has
    one, several = (
        Translator(commands.ROOT / "examples/models/ar", inter_threads=inter, intra_threads=2) for inter in (1, 3)
    )
    assert several.translations(texts) == one.translations(texts)


@pytest.mark.parametrize(
    ("batches", "inter", "intra", "expected"),
    [
        (1, None, None, (1, 4)),
        (2, None, None, (2, 2)),
        (9, None, None, (4, 1)),
        (9, 2, None, (2, 2)),
        (9, None, 3, (1, 3)),
        (1, 3, None, (1, 4)),
        (9, 3, 5, (3, 5)),
        (0, None, None, (1, 4)),
    ],
)
def test_searches_share_the_threads(
    batches: int, inter: int | None, intra: int | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert shared_out(batches, inter, intra) == expected
