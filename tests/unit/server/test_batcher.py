"""The queue in front of a scripted translator: batches, and answers of requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from amlp_fairseq.server.batcher import Batcher, Full
from amlp_fairseq.text.sentences import TooLong
from amlp_fairseq.translator.translator import Translation

PAIR = ("en", "de")
SECONDS = 20  # in which everything here has long happened


class Scripted:
    """Translates in capitals, and batch by batch when it is let to. "long" is too long, "bug" an error, and so is a
    batch with "crowd" and another text."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.languages = PAIR
        self.began, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def translations(self, texts: list[str], source_lang: str, target_lang: str) -> list[Translation]:
        for number, text in enumerate(texts, 1):
            if text == "long":
                raise TooLong(number, "too long")
        self.batches.append(texts)
        self.began.release()
        assert self.go_on.acquire(timeout=SECONDS)
        if "bug" in texts or ("crowd" in texts and len(texts) > 1):
            raise RuntimeError("a bug")
        other = "" if target_lang == PAIR[1] else target_lang
        return [Translation(text.upper() + other) for text in texts]

    def check(self, text: str) -> None:
        if text == "long":
            raise TooLong(1, "too long")


@contextmanager
def busy(max_batch: int = 4, max_waiting: int = 10) -> Iterator[tuple[Scripted, Batcher, Callable[[], None]]]:
    """A batcher whose thread is in the middle of a batch, ["first"], until the function is called."""
    translator: Any = Scripted()
    with Batcher(translator, max_batch, max_waiting) as batcher:
        first = batcher.submit(["first"], PAIR)
        assert translator.began.acquire(timeout=SECONDS)

        def go_on() -> None:
            translator.go_on.release(100)
            assert found(first) == ["FIRST"]

        try:
            yield translator, batcher, go_on
        finally:
            translator.go_on.release(100)


def found(future: Future[list[Translation]]) -> list[str]:
    return [translation.text for translation in future.result(SECONDS)]


def test_requests_that_wait_are_one_batch() -> None:
    with busy() as (translator, batcher, go_on):
        futures = [batcher.submit(texts, PAIR) for texts in (["a"], ["b", "c"], [], ["d"])]
        assert batcher.waiting == 5
        go_on()
        assert [found(future) for future in futures] == [["A"], ["B", "C"], [], ["D"]]
        assert translator.batches == [["first"], ["a", "b", "c", "d"]]
        assert batcher.waiting == 0


def test_requests_take_turns() -> None:
    with busy() as (translator, batcher, go_on):
        large, small = batcher.submit(list("abcdefghi"), PAIR), batcher.submit(["x"], PAIR)
        go_on()
        assert (found(small), found(large)) == (["X"], list("ABCDEFGHI"))
        assert translator.batches[1:] == [list("abcd"), ["x", *"efg"], ["h", "i"]]


def test_a_long_text_counts_as_several() -> None:
    """Long texts are split into sentences: many in a batch would delay all requests."""
    with busy() as (translator, batcher, go_on):
        large, small = batcher.submit(["a" * 399, "b" * 10_000, "c", "d"], PAIR), batcher.submit(["x"], PAIR)
        go_on()
        assert (found(small), len(found(large))) == (["X"], 4)
        assert translator.batches[1:] == [["a" * 399, "b" * 10_000], ["x", "c", "d"]]


def test_cancelled_requests_are_not_translated() -> None:
    with busy() as (translator, batcher, go_on):
        futures = [batcher.submit([text], PAIR) for text in "abc"]
        futures[1].cancel()
        assert batcher.waiting == 3
        go_on()
        assert (found(futures[0]), found(futures[2])) == (["A"], ["C"])
        assert translator.batches == [["first"], ["a", "c"]]


def test_cancelled_in_the_middle() -> None:
    with busy() as (translator, batcher, _):
        begun = batcher.submit(list("abcdef"), PAIR)
        translator.go_on.release()
        assert translator.began.acquire(timeout=SECONDS)  # the batch a, b, c, d
        begun.cancel()
        after = batcher.submit(["x"], PAIR)
        translator.go_on.release(100)
        assert found(after) == ["X"]
        assert translator.batches == [["first"], list("abcd"), ["x"]]


@pytest.mark.parametrize("bad", ["long", "bug"])
def test_errors_are_of_one_request(bad: str) -> None:
    with busy() as (_, batcher, go_on):
        futures = [batcher.submit(texts, PAIR) for texts in (["a"], ["b", bad], ["c"])]
        go_on()
        assert (found(futures[0]), found(futures[2])) == (["A"], ["C"])
        error = futures[1].exception(SECONDS)
        assert str(error) == {"long": "too long", "bug": "a bug"}[bad]
        if isinstance(error, TooLong):
            assert error.number == 2
        assert found(batcher.submit(["d"], PAIR)) == ["D"]


def test_a_batch_that_fails_as_a_whole() -> None:
    """As where it takes too much memory: its texts are translated one by one."""
    with busy() as (_, batcher, go_on):
        futures = [batcher.submit(["crowd"], PAIR), batcher.submit(["a", "b"], PAIR)]
        go_on()
        assert [found(future) for future in futures] == [["CROWD"], ["A", "B"]]


def test_full() -> None:
    with busy(max_waiting=3) as (_, batcher, go_on):
        futures = [batcher.submit([text], PAIR) for text in "ab"]
        with pytest.raises(Full, match="3 requests"):
            batcher.submit(["c"], PAIR)
        futures[0].cancel()
        futures[0] = batcher.submit(["d"], PAIR)
        go_on()
        assert [found(future) for future in futures] == [["D"], ["B"]]


def test_a_batch_has_one_pair_of_languages() -> None:
    """The others keep their order."""
    with busy(max_batch=4) as (translator, batcher, let_go):
        pairs = [PAIR, ("en", "fr"), PAIR, ("en", "fr")]
        futures = [batcher.submit([text], pair) for text, pair in zip("abcd", pairs, strict=True)]
        let_go()
        assert [found(future) for future in futures] == [["A"], ["Bfr"], ["C"], ["Dfr"]]
    assert translator.batches == [["first"], ["a", "c"], ["b", "d"]]
