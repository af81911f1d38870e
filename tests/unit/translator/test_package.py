"""amlp-fairseq package: what a folder decodes in, what its card says, which files and dictionaries it refuses, and that
it appears when it is whole."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest
import sentencepiece
import stock
import torch

from amlp_fairseq import Translator
from amlp_fairseq.cli.package import is_of_documents, package
from amlp_fairseq.decoding import packed_linear
from amlp_fairseq.model_folder import format as model_folder
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.text.unknown_words import COPIES
from amlp_fairseq.translator import decoding_options

MODEL = commands.ROOT / "examples/models/ar"
RESULT = {"subset": "test", "decoding": "beam 4", "steps_per_sentence": 7.5}


def arguments(model: Path, out: Path, **given: Any) -> argparse.Namespace:
    return stock.package_arguments(model, out, **given)


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
    assert card.endswith(f"\n\n## Scores\n\nScores of the model folder that it was made of:\n\n{scores}")
    assert card.startswith("# sp ace\n")
    assert "\namlp-fairseq translate --model 'sp ace' < text.en > text.de\n" in card
    (tmp_path / "out/README.md").write_text("# out\n\nEdited.\n", encoding="utf-8")
    package(arguments(tmp_path / "out", tmp_path / "new"), [])
    assert "## Scores" not in (tmp_path / "new/README.md").read_text(encoding="utf-8")


def test_a_folder_appears_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the command without another line of it."""

    def killed(folder: Path, **options: Any) -> Any:
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
    edited(model, text={}, checksums=None)
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


def test_what_names_no_file_is_none(model: Path, tmp_path: Path) -> None:
    package(arguments(model, tmp_path / "out"), ["--draft", "none", "--shortlist", "none", "--replace-unk"])
    found = read_config(tmp_path / "out")["decoding"]
    assert found["draft"] == found["shortlist"] == "none"
    assert found["replace_unk"] in COPIES
    assert Translator(tmp_path / "out").translate(["he said"]) == Translator(model).translate(["he said"])


def test_sizes_of_no_shortlist(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--best: .*--shortlist"):
        package(arguments(model, tmp_path / "out", best=50), [])


def test_a_draft_can_be_turned_off(model: Path, tmp_path: Path) -> None:
    package(arguments(model, tmp_path / "out"), ["--beam", "1", "--draft", "source"])
    found = Translator(tmp_path / "out", beam=4, draft="none").translate(["he said"])
    assert found == Translator(model, beam=4).translate(["he said"])


TEXT = ["She falls asleep.", "The doctor is sixty years old."]
has_int8 = pytest.mark.skipif("int8" not in packed_linear.fast_dtypes("cpu"), reason="this processor has no int8")


def edited(folder: Path, **changes: Any) -> Path:
    """The folder with other keys in config.json; those that are None are removed."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    config = {key: value for key, value in config.items() if value is not None or key not in changes}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def int8_maps(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many matrices become int8 when the model is made ready."""
    made: list[Any] = []
    own = packed_linear.Int8Map
    monkeypatch.setattr(packed_linear, "Int8Map", lambda *args: made.append(args) or own(*args))
    translator.translate(TEXT)
    return len(made)


@has_int8
@pytest.mark.parametrize("name", ["ar", "cmlmc"])
def test_int8_weights_decode_in_int8(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(arguments(MODEL.parent / name, tmp_path / "out", weights="int8"), [])
    folder = tmp_path / "out"
    assert int8_maps(Translator(folder, backend="pytorch"), monkeypatch) > 10
    assert int8_maps(Translator(folder, backend="pytorch", decode_dtype="float32"), monkeypatch) == 0
    assert "| decodes in | int8 on CPUs, float32 on GPUs" in (folder / "README.md").read_text("utf-8")
    package(arguments(folder, tmp_path / "again"), ["--decode-dtype", "float32"])
    assert read_config(tmp_path / "again")["weights"] == "int8"
    assert int8_maps(Translator(tmp_path / "again", backend="pytorch"), monkeypatch) == 0
    assert "| decodes in | float32 |" in (tmp_path / "again/README.md").read_text("utf-8")


def test_int8_weights_where_there_is_no_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are restored; only who asks for int8 is told."""
    package(arguments(MODEL, tmp_path / "out", weights="int8"), [])
    for module in (packed_linear, decoding_options):
        monkeypatch.setattr(module, "fast_dtypes", lambda device: ("float32",))
    translator = Translator(tmp_path / "out", backend="pytorch")
    assert translator.pytorch().task.cfg.decode_dtype is None
    assert translator.translate(TEXT)[1] == "Der Arzt ist sechzig Jahre alt."
    with pytest.raises(ValueError, match="--decode-dtype int8 is not for cpu"):
        Translator(tmp_path / "out", backend="pytorch", decode_dtype="int8").translate(TEXT)


@pytest.mark.parametrize(
    ("name", "words", "facts"),
    [
        ("ar", [], ["beam 4", "lenpen 0.6 (length penalty fairseq: score / length^lenpen)", "at most 200 pieces"]),
        ("ibdecoder", ["--beam", "1"], ["beam 1", "0.6 (length penalty gnmt: score / ((5 + length) / 6)^lenpen)"]),
        ("ar", ["--unnormalized", "--max-len-a", "2"], ["no length penalty", "2 times the source's + 200 pieces"]),
        ("cmlmc", ["--iter-decode-max-iter", "4"], ["at most 5 decoder calls", "tries 3 lengths"]),
    ],
)
def test_the_card_says_how_it_decodes(name: str, words: list[str], facts: list[str], tmp_path: Path) -> None:
    """bfloat16 weights decode in float32."""
    package(arguments(MODEL.parent / name, tmp_path / "out", max_length=30), words)
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "| weights | bfloat16 |" in card
    assert "| decodes in | float32 |" in card
    assert "| longest sentence | 30 pieces, longer ones are cut |" in card
    assert all(fact in card for fact in facts)
    assert Translator(tmp_path / "out").max_length == 30


def test_a_length_without_positions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--max-length 2000: the model has positions for 1022 pieces$"):
        package(arguments(MODEL, tmp_path / "out", max_length=2000), [])
    assert not list(tmp_path.iterdir())


def test_files_of_another_model(model: Path) -> None:
    """Valid ones: what was written with them would be garbage. Folders of older versions have no checksums."""
    assert read_config(model)["checksums"].keys() == {
        *("dict.en.txt", "dict.de.txt", "sentencepiece.bpe.model", "model.safetensors")
    }
    translated = Translator(model).translate(TEXT)
    other = commands.ROOT / "examples/models/ibdecoder/model.safetensors"
    entries = (model / "dict.de.txt").read_text("utf-8").splitlines(keepends=True)
    swapped = "".join([entries[1], entries[0], *entries[2:]]).encode()
    for name, content in (("model.safetensors", other.read_bytes()), ("dict.de.txt", swapped)):
        own = (model / name).read_bytes()
        (model / name).write_bytes(content)
        with pytest.raises(
            ValueError, match=f"^{re.escape(str(model / name))} is not the file that the model was made"
        ):
            Translator(model)
        (model / name).write_bytes(own)
    units = (model / "sentencepiece.bpe.model").rename(model / "units")
    shutil.copy(subwords(model.parent, 200), model / "sentencepiece.bpe.model")
    with pytest.raises(ValueError, match=r"sentencepiece\.bpe\.model is not the file that the model was made with"):
        Translator(model)
    shutil.copy(units, model / "sentencepiece.bpe.model")
    edited(model, checksums=None)
    assert Translator(model).translate(TEXT) == translated
    (model / "dict.en.txt").write_text("".join(entries[:-1]), encoding="utf-8")
    message = r"/dict\.en\.txt is not the dictionary of the model: it has 751 entries, the encoder's embedding 752$"
    with pytest.raises(ValueError, match=message):
        Translator(model)
    with pytest.raises(ValueError, match=message):
        package(arguments(model, model.parent / "out"), [])


def subwords(folder: Path, size: int) -> Path:
    """A sentencepiece model of other text."""
    text = (commands.ROOT / "docs/glossary.md").read_text("utf-8").splitlines()
    with open(folder / f"{size}.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=file, vocab_size=size, minloglevel=2
        )
    return folder / f"{size}.model"


def test_a_subword_model_of_other_data(model: Path, tmp_path: Path) -> None:
    """Given for data of pieces, it is refused; so are pieces of which nobody says how they come about."""
    checkpoint, data = tmp_path / "checkpoint.pt", tmp_path / "data"
    data.mkdir()
    for path in model.glob("dict.*"):
        shutil.copy(path, data)
    torch.save(model_folder.read_checkpoint(model), checkpoint)
    given = {"post_process": "sentencepiece", "subword_model": subwords(tmp_path, 200), "data": [data]}
    with pytest.raises(
        ValueError, match=r"200\.model is not that of .*dict\.en\.txt: it leaves \d+ of \d+ words whole"
    ):
        package(arguments(checkpoint, tmp_path / "out", **given), [])
    with pytest.raises(
        ValueError, match=r"pieces of words \(sentencepiece\).*--post-process sentencepiece --subword-model"
    ):
        package(arguments(checkpoint, tmp_path / "out", data=[data]), [])
    assert not (tmp_path / "out").exists()
    given["subword_model"] = model / "sentencepiece.bpe.model"
    package(arguments(checkpoint, tmp_path / "out", **given), ["--beam", "4", "--lenpen", "0.6"])
    assert Translator(tmp_path / "out").translate(TEXT) == Translator(MODEL).translate(TEXT)
    out = edited(tmp_path / "out", checksums=None)  # the training's task kept no fingerprints, the folder does
    entries = (out / "dict.en.txt").read_text("utf-8").splitlines(keepends=True)
    (out / "dict.en.txt").write_text("".join(reversed(entries)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the source dictionary of .* is not the one that the model was trained with"):
        Translator(out)
    package(arguments(checkpoint, tmp_path / "pieces", data=[data], post_process="none"), [])
    assert (
        Translator(tmp_path / "pieces").translate([Translator(MODEL).text.encode(TEXT[1])])[0].startswith("\u2581Der")
    )


def test_documents_stay_whole(model: Path, tmp_path: Path) -> None:
    """A folder of summarisation says so, and what is made of it."""
    package(arguments(edited(model, split_sentences=False), tmp_path / "out"), [])
    assert read_config(tmp_path / "out")["split_sentences"] is False
    assert "split_sentences" not in read_config(MODEL)
    (tmp_path / "text.json").write_text('{"corpus": "embedded_summaries"}', encoding="utf-8")
    assert is_of_documents(tmp_path, tmp_path)
    (tmp_path / "text.json").write_text('{"corpus": "embedded"}', encoding="utf-8")
    assert not is_of_documents(tmp_path, tmp_path)
