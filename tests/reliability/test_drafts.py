"""Draft-and-verify decoding with the trained models of examples/models: the words of greedy search in fewer calls."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import commands
import pytest

from amlp_fairseq import Translator
from amlp_fairseq.cli import watch
from amlp_fairseq.translator import steps
from amlp_fairseq.translator.steps import DRAFT, WRITE

MODELS = commands.ROOT / "examples/models"
TEXTS = [
    "Today our friend has drunk milk.",
    "I want to invite the woman if I am at home with the new dog.",
    "",
    "The old friend invites our neighbour because she reads a book.",
    "Never seen 漢字 words, and one more.",
]


@pytest.fixture(scope="module")
def greedy() -> list[tuple[str, int]]:
    found = Translator(MODELS / "ar", beam=1).translations(TEXTS)
    return [(each.text, each.calls) for each in found]


@pytest.mark.parametrize("drafter", ["ibdecoder", "ibdecoder_sa", "cmlmc", "ar"])
@pytest.mark.parametrize("decode_dtype", [None, "int8"])
def test_every_model_drafts(drafter: str, decode_dtype: str | None, greedy: list[tuple[str, int]]) -> None:
    options = {} if decode_dtype is None else {"decode_dtype": decode_dtype}
    backend: Any = "pytorch" if decode_dtype is None else "engine"  # each has int8 maps of its own
    tolerance = 1e-4 if decode_dtype is None else 0
    expected = Translator(MODELS / "ar", beam=1, backend=backend, **options).translations(TEXTS)
    for words in (1, 8):
        model = Translator(MODELS / "ar", beam=1, draft_path=str(MODELS / drafter), draft_words=words, **options)
        found = model.translations(TEXTS)
        assert [each.text for each in found] == [each.text for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=tolerance)
            assert one.calls <= other.calls
        if drafter == "ar":  # it knows every word
            assert [each.calls for each in found] == [-(-each.calls // (words + 1)) for each in expected]
        elif words == 8:
            assert sum(each.calls for each in found) < sum(each.calls for each in expected) / 1.2


def test_a_memory_of_the_same_translations_knows_every_word(greedy: list[tuple[str, int]], tmp_path: Path) -> None:
    found = Translator(MODELS / "ar", beam=1).translations(TEXTS)
    (tmp_path / "memory").write_text("".join(" ".join(each.pieces) + "\n" for each in found), encoding="utf-8")
    model = Translator(MODELS / "ar", beam=1, draft_file=str(tmp_path / "memory"))
    assert [each.text for each in model.translations(TEXTS)] == [text for text, _ in greedy]
    assert sum(each.calls for each in model.translations(TEXTS)) < sum(calls for _, calls in greedy) / 2


def test_watch_shows_drafts_and_what_became_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"beam": 1, "draft_path": str(MODELS / "ibdecoder_sa")}
    found = steps.decode(steps.load(MODELS / "ar", **options), TEXTS[1])
    assert found.text == Translator(MODELS / "ar", beam=1).translate(TEXTS[1:2])[0]
    final, done = found.steps[-1].words, 0
    for step in found.steps:
        assert step.places == tuple(range(done, done + len(step.places)))
        if step.kind == DRAFT:
            draft = step.words[done : done + len(step.places)]
            continue
        assert step.kind == WRITE
        written = final[done : done + len(step.places)]
        right = len(written) - (not step.ends)  # the last one comes free
        assert written[:right] == draft[:right]
        done += len(step.places)
        assert step.words == final[:done] + (None,) * (len(final) - done)
    assert [step.ends for step in found.steps if step.kind == WRITE] == [False] * (found.calls - 1) + [True]
    commands.call(watch, pytest.MonkeyPatch(), TEXTS[1], "--model", MODELS / "ar", *flags(options))
    printed = capsys.readouterr().out
    assert f"  {found.calls} decoder calls: {found.text}\n" in printed
    assert "a draft before call 1: " in printed


def flags(options: dict[str, object]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("ar", ["--draft", "source"], "--beam 4: give --beam 1"),
        ("ar", ["--beam", "1", "--draft", "source", "--draft-file", "x"], "--draft and --draft-file cannot be given"),
        ("ar", ["--beam", "1", "--draft", "target"], "--draft 'target' is unknown; known: source"),
        ("ar", ["--beam", "1", "--draft-path", "nowhere"], "nowhere"),
        ("ar", ["--beam", "1", "--draft-file", "nowhere"], "--draft-file nowhere cannot be read"),
        ("ar", ["--beam", "1", "--draft", "source", "--draft-words", "0"], "--draft-words must be at least 1, not 0"),
        ("ibdecoder", ["--beam", "1", "--draft", "source"], "a model that is not autoregressive"),
        ("cmlmc", ["--draft", "source"], "--draft is an option of --task translation_interleaved only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(model: str, options: list[str], message: str) -> None:
    command = ["amlp-fairseq", "translate", "--model", str(MODELS / model), *options]
    found = commands.run("amlp_fairseq.cli.main", *command[1:], check=False)
    last = found.splitlines()[-1]
    assert re.search(re.escape(message), last)
    assert "Traceback" not in found


def test_another_dictionary_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", MODELS / "ibdecoder", other], check=True)
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    config["task_state"]["dictionaries"]["target"] = "752 entries, sha256 0000000000000000"
    (other / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"--draft-path .*other: the target dictionary of .* is not the one"):
        Translator(MODELS / "ar", beam=1, draft_path=str(other))


def test_calls_are_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By translate --jsonl: those of the model that verifies."""
    (tmp_path / "in").write_text(TEXTS[0] + "\n", encoding="utf-8")
    output = commands.run(
        *("amlp_fairseq.cli.main", "translate", "--model", MODELS / "ar", "--beam", "1", "--jsonl"),
        *("--draft-path", MODELS / "ar", "--draft-words", "3", "--input", tmp_path / "in"),
    )
    (line,) = [json.loads(each) for each in output.splitlines() if each.startswith("{")]
    assert line["calls"] == -(-(len(line["pieces"]) + 1) // 4)
