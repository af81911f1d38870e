"""amlp-fairseq package: the model card has the scores by whatever metric, the subword model its own name, and a folder
appears when it is whole."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest

from amlp_fairseq import Translator
from amlp_fairseq.cli.package import package
from amlp_fairseq.translator import model_folder

MODEL = commands.ROOT / "examples/models/ar"
RESULT = {"subset": "test", "decoding": "beam 4", "steps_per_sentence": 7.5}


def arguments(model: Path, out: Path, **text: Any) -> argparse.Namespace:
    settings = {"tokenizer": None, "post_process": None, "subword_model": None, **text}
    return argparse.Namespace(checkpoints=[model], out=out, weights="float32", data=None, decoding=None, **settings)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(MODEL, tmp_path / "model")


@pytest.mark.parametrize(
    ("scores", "columns", "values", "signature"),
    [
        ({"bleu": 30.0, "chrf": 50.0, "bleu_signature": "a"}, "BLEU | chrF", "30.0 | 50.0", "BLEU: `a`"),
        ({"kytea_bleu": 31.0, "chrf": 51.0, "kytea_signature": "b"}, "BLEU | chrF", "31.0 | 51.0", "BLEU: `b`"),
        (
            {"rouge_1": 40.0, "rouge_2": 20.0, "rouge_l": 35.0, "rouge_signature": "c"},
            "ROUGE-1 | ROUGE-2 | ROUGE-L",
            "40.0 | 20.0 | 35.0",
            "ROUGE: `c`",
        ),
    ],
)
def test_scores_in_the_card(
    model: Path, tmp_path: Path, scores: dict[str, Any], columns: str, values: str, signature: str
) -> None:
    lines = [{**RESULT, **dict.fromkeys(scores, 0.0)}, {**RESULT, **scores, "subset": "te\u2028st"}, RESULT | scores]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (model / "results.jsonl").write_text(text, encoding="utf-8")
    package(arguments(model, tmp_path / "out"), [])
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert f"| test set | decoding | {columns} | calls |\n| --- |" in card
    assert f"| test | beam 4 | {values} | 7.5 |\n| te\u2028st | beam 4 | {values} | 7.5 |\n\n{signature}\n" in card


def test_scores_of_the_model_that_it_was_made_of(tmp_path: Path) -> None:
    """And of the one that that one was made of; with another name, in a line for a shell."""
    scores = (MODEL / "README.md").read_text(encoding="utf-8").split("## Scores\n\n")[1]
    package(arguments(MODEL, tmp_path / "out"), [])
    package(arguments(tmp_path / "out", tmp_path / "sp ace"), [])
    card = (tmp_path / "sp ace/README.md").read_text(encoding="utf-8")
    assert card.endswith(f"\n\n## Scores\n\nThose of the model folder that it was made of:\n\n{scores}")
    assert card.startswith("# sp ace\n")
    assert "\namlp-fairseq translate --model 'sp ace' < text.en > text.de\n" in card
    (tmp_path / "out/README.md").write_text("# out\n\nEdited.\n", encoding="utf-8")
    package(arguments(tmp_path / "out", tmp_path / "new"), [])
    assert "## Scores" not in (tmp_path / "new/README.md").read_text(encoding="utf-8")


def test_a_folder_appears_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the command without another line of it."""

    def killed(folder: Path) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("amlp_fairseq.cli.package.Translator", killed)
        with pytest.raises(KeyboardInterrupt):
            package(arguments(MODEL, tmp_path / "out"), [])
    assert not (tmp_path / "out").exists()
    package(arguments(MODEL, tmp_path / "out"), [])
    assert Translator(tmp_path / "out").translate(["he said"]) == Translator(MODEL).translate(["he said"])


def test_a_folder_of_another_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = model_folder.write

    def late(*args: Any) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/file").touch()
        write(*args)

    monkeypatch.setattr(model_folder, "write", late)
    with pytest.raises(OSError, match="Directory not empty"):
        package(arguments(MODEL, tmp_path / "out"), [])
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["out", "out/file"]


@pytest.mark.parametrize(
    ("checkpoints", "decoding", "words", "message"),
    [
        ([MODEL, MODEL], None, [], f"CHECKPOINT {MODEL} is a folder: of several only checkpoints are averaged, name "),
        ([MODEL], "wrong", [], "--decoding 'wrong' is not in the recipe; it has none: "),
        ([MODEL], None, ["--task", "translation"], "--task translation: the model decodes with translation_interleav"),
    ],
)
def test_mistakes_leave_no_folder(
    checkpoints: list[Path], decoding: str | None, words: list[str], message: str, tmp_path: Path
) -> None:
    args = arguments(MODEL, tmp_path / "parent/of/out")
    args.checkpoints, args.decoding = checkpoints, decoding
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        package(args, words)
    assert not list(tmp_path.iterdir())


def test_a_number_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^lenpen=nan: a number is needed$"):
        package(arguments(MODEL, tmp_path / "out"), ["--lenpen", "nan"])
    assert not list(tmp_path.iterdir())


def test_a_card_that_cannot_be_written_leaves_no_folder(model: Path, tmp_path: Path) -> None:
    (model / "results.jsonl").write_text("damaged\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 1 is damaged"):
        package(arguments(model, tmp_path / "out"), [])
    assert not (tmp_path / "out").exists()


def test_a_subword_model_of_any_name(model: Path, tmp_path: Path) -> None:
    """For data that do not say how lines are cut up."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"text": {}}), encoding="utf-8")
    named = (model / "sentencepiece.bpe.model").rename(tmp_path / "my.model")
    with pytest.raises(ValueError, match=r"my\.model goes with --post-process: choose sentencepiece or subword_nmt$"):
        package(arguments(model, tmp_path / "out", subword_model=named), [])
    assert not (tmp_path / "out").exists()
    package(arguments(model, tmp_path / "out", subword_model=named, post_process="sentencepiece"), [])
    assert (tmp_path / "out/sentencepiece.bpe.model").read_bytes() == named.read_bytes()
    assert Translator(tmp_path / "out").translate(["he said"]) == Translator(MODEL).translate(["he said"])


def test_another_model_is_found_from_everywhere(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package(arguments(model, tmp_path / "out"), ["--beam", "1", "--draft-path", "model"])
    monkeypatch.chdir("/")
    text = "he said that the student can find the cars"
    drafted, own = (Translator(each, beam=1).translations([text])[0] for each in (tmp_path / "out", model))
    assert drafted.text == own.text
    assert drafted.calls < own.calls
    package(arguments(tmp_path / "out", tmp_path / "without"), ["--beam", "4", "--draft-path", ""])
    for each in (Translator(tmp_path / "out", beam=4, draft_path=""), Translator(tmp_path / "without")):
        assert each.translate([text]) == Translator(model, beam=4).translate([text])


def test_a_draft_can_be_turned_off(model: Path, tmp_path: Path) -> None:
    package(arguments(model, tmp_path / "out"), ["--beam", "1", "--draft", "source"])
    found = Translator(tmp_path / "out", beam=4, draft="none").translate(["he said"])
    assert found == Translator(model, beam=4).translate(["he said"])
