"""Translations while they are written."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from itertools import groupby
from typing import Any

import commands
import pytest

from amlp_fairseq import Translator
from amlp_fairseq.engine.order import Order
from amlp_fairseq.translator.stream import Stream, Tell

MODELS = commands.ROOT / "examples/models"
SENTENCE = "He says that the student can find the big cars."
TEXT = f"{SENTENCE} They sleep.\n\n\nThe old man sees it.\n"


@pytest.mark.parametrize(
    ("order", "written", "runs"),
    [
        ((1, 1, False), "", ["", ""]),
        ((1, 3, False), "abc", ["abc", ""]),
        ((2, 1, False), "", ["", ""]),
        ((2, 1, False), "a", ["a", ""]),
        ((2, 2, False), "azby", ["ab", "yz"]),
        ((2, 1, True), "mnlo", ["", "lmno", ""]),
        ((4, 1, False), "anmz", ["a", "mn", "z"]),
        ((4, 1, False), "anmzboly", ["ab", "lmno", "yz"]),
    ],
)
def test_runs(order: tuple[int, int, bool], written: str, runs: list[str]) -> None:
    """By hand: letters in the order in which they are written, and between which of them others are missing."""
    directions, words, middle = order
    found = Order(directions, directions * words, middle).runs([*map(ord, written)])
    assert ["".join(map(chr, run)) for run in found] == runs


@pytest.mark.parametrize(
    ("model", "options"), [("ar", {"beam": 1}), ("ibdecoder", {"beam": 1}), ("ibdecoder", {"beam": 3}), ("cmlmc", {})]
)
def test_each_call(model: str, options: Any) -> None:
    """One after each decoder call. Greedily words stay: what there is begins the translation, and ends it."""
    translator = Translator(MODELS / model, **options)
    (expected,) = translator.translations([SENTENCE])
    *partial, complete = translator.stream(SENTENCE)
    assert (complete.parts, complete.translation, complete.text) == ((expected.text,), expected, expected.text)
    if model == "cmlmc":
        assert {len(each.parts) for each in partial} == {1}
        return
    assert len(partial) >= expected.calls - 1
    if options["beam"] > 1:  # the best one may have ended before the last call
        assert all(len(each.parts) == 2 for each in partial)
        return
    for call, each in enumerate(partial, 1):
        last = expected.pieces[-call:] if model == "ibdecoder" else ()
        parts = (translator.text.decode(" ".join(pieces)) for pieces in (expected.pieces[:call], last))
        assert each.parts == tuple(parts)


@pytest.mark.parametrize("model", ["ar", "ibdecoder", "cmlmc"])
def test_texts(model: str) -> None:
    """Sentence after sentence; what is before one is in its place, and the same for all its calls."""
    translator = Translator(MODELS / model)
    (expected,) = translator.translations([TEXT])
    *partial, last = translator.stream(TEXT)
    assert (last.before, last.parts, last.translation) == ("", (expected.text,), expected)
    first, second, third = (part.text for part in expected.parts)
    befores = ["", f"{first} ", f"{first} {second}\n\n\n"]
    assert [before for before, _ in groupby(partial, lambda each: each.before)] == befores
    for before, text in zip(befores[:2], (first, second), strict=True):
        assert [each.parts for each in partial if each.before == before][-1] == (text,)
    assert expected.text == f"{befores[2]}{third}\n"


def test_a_hundred_sentences_take_no_more_memory_each_than_one() -> None:
    """What is before a sentence is one string for all calls."""
    partial = [*Translator(MODELS / "ar").stream(f"{SENTENCE} " * 20, beam=1)]
    assert len({id(each.before) for each in partial}) <= 21 < len(partial)


def test_empty_texts() -> None:
    for text in ("", " \n\n"):
        (only,) = Translator(MODELS / "ar").stream(text)
        assert only.translation == Translator(MODELS / "ar").translations([text])[0]


def test_prefixes_and_options() -> None:
    translator = Translator(MODELS / "ar", nbest=2)
    (expected,) = translator.translations([TEXT], target_prefixes=["Sie sagt"], beam=2)
    first, *_, last = translator.stream(TEXT, target_prefix="Sie sagt", beam=2)
    assert last.translation == expected != translator.translations([TEXT])[0]
    assert first.parts == ("Sie", "")
    both = Translator(MODELS / "ibdecoder")
    options = {"target_prefix": "Er qxq", "target_suffix": "xyz ."}
    first, *_, last = both.stream(SENTENCE, **options)
    assert first.parts == ("Er", ".")
    assert last.text.startswith("Er qxq")
    assert last.text.endswith("xyz .")


@pytest.mark.parametrize("options", [{"backend": "pytorch"}, {"draft": "source", "beam": 1}])
def test_whole_sentences(options: Any) -> None:
    translator = Translator(MODELS / "ar", **options)
    (expected,) = translator.translations([TEXT])
    *partial, last = translator.stream(TEXT)
    first, second, _ = (part.text for part in expected.parts)
    assert [(each.before, each.parts) for each in partial] == [("", (first,)), (f"{first} ", (second,))]
    assert last.parts == (expected.text,)


@pytest.mark.parametrize(
    ("text", "options", "error", "says"),
    [
        ([SENTENCE], {}, TypeError, "one text"),
        ("half \ud800", {}, ValueError, "half a surrogate pair"),
        (SENTENCE, {"bean": 1}, ValueError, "'bean' is unknown"),
        (SENTENCE, {"target_lang": "fr"}, ValueError, "translates en to de"),
        ("", {"target_prefix": "Sie"}, ValueError, "is empty"),
        (SENTENCE, {"target_suffix": "Sie"}, ValueError, "does not write them first"),
    ],
)
def test_mistakes(text: Any, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        list(Translator(MODELS / "ar").stream(text, **options))


@pytest.mark.parametrize("model", ["ar", "cmlmc"])
def test_an_early_end_ends_the_search(model: str) -> None:
    """The rest of a long text is not translated."""
    stream = Translator(MODELS / model).stream(TEXT * 200)
    next(stream)
    stream.close()
    assert list(stream) == []
    stream._thread.join(10)
    assert not stream._thread.is_alive()


def test_values_and_errors() -> None:
    def work(tell: Tell[int]) -> None:
        tell(1)
        raise KeyError(2)

    stream = Stream(work)
    assert next(stream) == 1
    with pytest.raises(KeyError, match="2"):
        next(stream)
    assert list(stream) == []


@pytest.mark.parametrize("how", ["closed", "closed elsewhere", "dropped"])
def test_ends(how: str) -> None:
    """What is told after the end ends the function, and one that waits waits no longer."""
    go_on, ended = threading.Event(), threading.Event()

    def work(tell: Tell[int]) -> None:
        try:
            tell(1)
            go_on.wait(10)
            tell(2)
        finally:
            ended.set()

    stream = Stream(work)
    assert next(stream) == 1
    if how == "closed elsewhere":
        threading.Timer(0.05, stream.close).start()
        assert list(stream) == []
    elif how == "closed":
        stream.close()
    del stream
    gc.collect()
    go_on.set()
    assert ended.wait(10)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("next(stream)", 0),
        ("next(stream); stream.close()", 0),
        ("for partial in stream: break", 0),
        ("with stream: next(stream); sys.exit(3)", 3),
        ("next(stream); raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_python_ends_in_the_middle_of_a_stream(code: str, status: int) -> None:
    """The engine is not at work then: it would end the process with an abort."""
    begin = f"import sys; from amlp_fairseq import Translator; t = Translator({str(MODELS / 'ar')!r}, beam=20)"
    program = f"{begin}; stream = t.stream({TEXT * 50!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, "terminate" in done.stderr) == (status, False), done.stderr
