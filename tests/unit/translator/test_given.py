"""What is given of a translation, alternatives, samples, ensembles and scores, for raw text."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import sys
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from amlp_fairseq import Translator
from amlp_fairseq.cli import score_pairs, serve, translate
from amlp_fairseq.engine.order import Order, shortest
from amlp_fairseq.model_folder.config import members, read_config
from amlp_fairseq.text.dictionary import Dictionary
from amlp_fairseq.translator.given import Given, Prefixes

MODELS = commands.ROOT / "examples/models"
AR, IB, CMLMC = (MODELS / name for name in ("ar", "ibdecoder", "cmlmc"))
TEXT = "She falls asleep. He sleeps."
#: Tokens: pieces of sentencepiece, and of subword_nmt.
PIECES = ["\u2581Die", "\u2581Kat", "\u2581Katze", "ze", "\u2581K", "at", "atze", "a", "t", ".", "\u2581"]
UNITS = ["Die", "Kat", "Kat@@", "Katze", "ze", "K@@", "at@@", "at", "atze"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(AR, beam=4)


def dictionary(folder: Path, symbols: list[str]) -> Dictionary:
    path = folder / "dict.txt"
    path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")
    return Dictionary(path)


def spelt(prefix: Any, words: Dictionary) -> set[tuple[str, ...]]:
    """All ways through a prefix: a brute-force walk."""
    ways: set[tuple[str, ...]] = set()
    open_ways: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while open_ways:
        state, written = open_ways.pop()
        if state == len(prefix):
            ways.add(written)
            continue
        open_ways += [(after, (*written, words.symbols[token])) for token, after in prefix[state].items()]
    return ways


@pytest.mark.parametrize(
    ("symbols", "segmentation", "given", "ways"),
    [
        (
            PIECES,
            "sentencepiece",
            Given(("\u2581Die", "\u2581Kat"), goes_on=True),
            {
                ("\u2581Die", "\u2581Kat"),
                ("\u2581Die", "\u2581Katze"),
                ("\u2581Die", "\u2581K", "at"),
                ("\u2581Die", "\u2581K", "atze"),
                ("\u2581Die", "\u2581K", "a", "t"),
            },
        ),
        (
            PIECES,
            "sentencepiece",
            Given(("\u2581Die",)),
            {("\u2581Die", piece) for piece in ("\u2581Die", "\u2581Kat", "\u2581Katze", "\u2581K", "\u2581", "</s>")},
        ),
        (
            UNITS,
            "subword_nmt",
            Given(("Die", "Kat"), goes_on=True),
            {
                ("Die", *rest)
                for rest in (("Kat",), ("Kat@@",), ("Katze",), ("K@@", "at@@"), ("K@@", "at"), ("K@@", "atze"))
            },
        ),
        (UNITS, "subword_nmt", Given(("Die", "K@@", "at")), {("Die", "K@@", "at")}),
        (UNITS, None, Given(("Die", "Ka"), goes_on=True), {("Die", word) for word in ("Kat", "Kat@@", "Katze")}),
        (UNITS, None, Given(("Die", "Hund"), goes_on=True), {("Die", "<unk>")}),
        (UNITS, None, Given(("Die",), is_whole=True), {("Die", "</s>")}),
        (UNITS, None, Given(), {()}),
    ],
)
def test_all_ways_to_write_what_is_given(
    symbols: list[str], segmentation: str | None, given: Given, ways: set[tuple[str, ...]], tmp_path: Path
) -> None:
    words = dictionary(tmp_path, symbols)
    prefix = Prefixes(words, Order(1, 1, False), segmentation)(given)
    if segmentation == "sentencepiece" and given.goes_on:
        ways = {way for way in ways if all(symbol in symbols for symbol in way)}
    assert spelt(prefix, words) == ways
    assert shortest(prefix) == min(sum(word != "</s>" for word in way) for way in ways)


@pytest.mark.parametrize("prefix", ["Er", "Er schl", "Die Kat", "Sie ist "])
def test_a_translation_begins_with_its_prefix(prefix: str, translator: Translator) -> None:
    (found,) = translator.translations([TEXT], target_prefixes=[prefix], nbest=3)
    assert found.text.startswith(prefix)
    assert len(found.parts) == 2
    assert found.parts[1].text == "Er schläft."
    assert all(text.startswith(prefix) for text, _ in found.alternatives)


def test_sentences_of_a_prefix_belong_to_those_of_the_text(translator: Translator) -> None:
    given = ["Sie geht. Der ", "Sie geht. Er ist. Und", "Sie geht.", "\n"]
    found = translator.translations([TEXT, TEXT, TEXT, TEXT], target_prefixes=given)
    assert found[0].parts[0].text == "Sie geht."
    assert found[0].parts[1].text.startswith("Der ")
    assert found[1].parts[0].text == "Sie geht."
    assert found[1].parts[1].text.startswith("Er ist. Und")
    assert found[2].parts[0].text.startswith("Sie geht.")
    assert found[3] == translator.translations([TEXT])[0]


def test_words_that_the_model_does_not_know_stand_as_they_are_given(translator: Translator) -> None:
    (found,) = translator.translations(["He sleeps."], target_prefixes=["Qxz 彼 d"])
    assert found.text.startswith("Qxz 彼 ")


def test_words_at_both_ends() -> None:
    translator = Translator(IB, beam=4)
    (found,) = translator.translations(["She falls asleep."], target_prefixes=["Er"], target_suffixes=["aus."], nbest=3)
    for text in (found.text, *(text for text, _ in found.alternatives)):
        assert text.startswith("Er ")
        assert text.endswith(" aus.")


@pytest.mark.parametrize("model", [IB, MODELS / "ibdecoder_sa"])
def test_a_word_begins_after_a_prefix_of_two_directions(model: Path) -> None:
    """The pieces of the other direction do not go on with the last word that is given."""
    for beam in (1, 5):
        translator = Translator(model, beam=beam)
        for begin in ("Das lange Konzert findet ", "Am ", "Heute hat unser Freund Milch ", "Heute"):
            (text,) = translator.translations(["The long concert takes place next week."], target_prefixes=[begin])
            assert f"{text.text} ".startswith(f"{begin.strip()} ")


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (AR, {"target_suffixes": ["a"]}, "words at the end of a translation"),
        (CMLMC, {"target_prefixes": ["a"]}, "^--target-prefix: .*cmlmc writes all words at a time"),
        (AR, {"target_prefixes": ["a", "b"]}, "there are 1 texts, and 2 prefixes"),
        (AR, {"target_prefixes": ["a " * 400]}, "--target-prefix.* a prefix of 400 words exceeds the 200 words"),
        (AR, {"target_prefixes": ["a"], "max_len_b": 0, "min_len": 0}, "a prefix of 1 words exceeds the 0 words"),
        (AR, {"target_prefixes": ["\ud800"]}, "half a surrogate pair"),
        (AR, {"sampling_topk": 3}, "^--sampling-topk 3 needs --sampling"),
        (AR, {"seed": 0}, "^--seed 0 needs --sampling"),
        (AR, {"sampling": True, "temperature": 0.0}, "^temperature=0.0: a number above 0"),
        (AR, {"sampling": True, "sampling_topk": -5}, "^sampling_topk=-5: a number of words"),
        (AR, {"sampling": True, "sampling_topp": 1.5}, "^sampling_topp=1.5: a share"),
        (AR, {"sampling": True, "seed": "x"}, "^seed='x': a whole number"),
        (AR, {"sampling": True, "seed": -1}, "^seed=-1: a whole number"),
        (AR, {"alternatives": True, "nbest": 1000}, "^--nbest 1000: at most 256"),
        (AR, {"target_lang": ""}, "translates en to de"),
        (AR, {"sampling": True, "alternatives": True}, "--sampling and --alternatives"),
    ],
)
def test_what_cannot_be_given(model: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Translator(model).translations(["He sleeps."], **given)


def test_other_mistakes(translator: Translator) -> None:
    with pytest.raises(ValueError, match="text 2 is empty, its --target-prefix or --target-suffix is not: 'a'"):
        translator.translations(["He", " "], target_prefixes=["", "a"])
    with pytest.raises(TypeError, match="in a list"):
        translator.translations(["He"], target_prefixes="Er")
    pytorch = Translator(AR, backend="pytorch")
    with pytest.raises(ValueError, match=r"^--seed 3 needs --sampling"):
        pytorch.translate(["He"], seed=3)
    for of_engine in (
        lambda: pytorch.translations(["He"], target_prefixes=["Er"]),
        lambda: pytorch.translations(["He"], alternatives=True),
        lambda: pytorch.score(["He"], ["Er"]),
    ):
        with pytest.raises(ValueError, match="the engine alone"):
            of_engine()
    drafted = Translator(AR, draft="source", beam=1)
    with pytest.raises(ValueError, match="--draft none"):
        drafted.translations(["He sleeps."], target_prefixes=["Er"])


def test_alternatives(translator: Translator) -> None:
    """The first one is greedy search's, and no two begin alike."""
    found = translator.translations(["She falls asleep."], target_prefixes=["Sie "], alternatives=True, nbest=4)[0]
    texts = [found.text, *(text for text, _ in found.alternatives)]
    assert len({text.split(" ")[1] for text in texts}) == len(texts) == 4
    assert texts[0] == translator.translations(["She falls asleep."], target_prefixes=["Sie "], beam=1)[0].text


def test_samples(translator: Translator) -> None:
    """Those of a sentence depend on the seed and the sentence; both backends have them."""
    texts = ["He reads a book.", "She falls asleep."]
    options: dict[str, Any] = {"sampling": True, "temperature": 2.0}
    first = translator.translate(texts, seed=3, **options)
    assert translator.translate(texts[::-1], seed=3, **options)[::-1] == first
    assert translator.translate(texts, seed=4, **options) != first
    pytorch = Translator(AR, beam=4, backend="pytorch", **options)
    drawn = pytorch.translate(texts, seed=3)
    assert pytorch.translate(texts, seed=3) == drawn
    assert pytorch.translate(texts, seed=4) != drawn
    state = torch.get_rng_state()
    pytorch.translate(texts)
    assert torch.equal(torch.get_rng_state(), state)


def changed(folder: Path, out: Path, size: float = 0.05) -> Path:
    """The same model with noise on its weights."""
    shutil.copytree(folder, out)
    weights, random = load_file(folder / "model.safetensors"), np.random.default_rng(1)
    noisy = {
        name: weight + size * weight.abs().mean() * torch.from_numpy(random.standard_normal(weight.shape)).float()
        for name, weight in weights.items()
    }
    save_file(noisy, out / "model.safetensors")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config.pop("checksums", None)
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return out


@pytest.mark.parametrize("model", [AR, IB])
def test_an_ensemble_of_folders(model: Path, tmp_path: Path) -> None:
    """As lists, with a colon, or in one folder; and as PyTorch finds it: sums of at most 12 terms up to 10."""
    other = changed(model, tmp_path / "other", 0.5)
    texts = [TEXT, "The old doctor sees a very small car.", "He reads."]
    alone = [Translator(folder, beam=4).translate(texts) for folder in (model, other)]
    ensemble = tmp_path / "ensemble"
    ensemble.mkdir()
    shutil.copytree(model, ensemble / "1")
    shutil.copytree(other, ensemble / "2")
    (ensemble / "config.json").write_text(json.dumps({"format": 1, "members": ["1", "2"]}))
    given: list[Any] = [[model, other], f"{model}:{other}", ensemble]
    found = [Translator(each, beam=4).translations(texts) for each in given]
    assert found[0] == found[1] == found[2]
    expected = Translator([model, other], beam=4, backend="pytorch").translations(texts)
    assert [each.text for each in found[0]] == [each.text for each in expected]
    for one, two in zip(found[0], expected, strict=True):
        assert one.score == pytest.approx(two.score, abs=12 * 10 * 2**-24 * 100)
    assert alone[0] != alone[1]
    assert members(ensemble) == (ensemble / "1", ensemble / "2")
    with pytest.raises(ValueError, match="is an ensemble, and one model is needed here"):
        read_config(ensemble)
    assert repr(Translator([model, other])).startswith(f"<Translator {model}:{other}: ")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([AR, IB], "models of an ensemble have one order, not 2"),
        ([AR, CMLMC], "some of these write all words at a time"),
        ([], r"^\[\] does not name all models"),
        (f"{AR}:", "does not name all models"),
        ([CMLMC, CMLMC], "such models do not decode as one"),
        ([AR, MODELS / "nowhere"], "nowhere is not the folder of a model"),
        ("a:b", "^a is not the folder of a model"),
    ],
)
def test_what_is_no_ensemble(folders: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Translator(folders)


@pytest.mark.parametrize("folders", [None, 3, [3], b"ar"])
def test_what_names_no_folder(folders: Any) -> None:
    with pytest.raises(TypeError, match="a model's folder is needed"):
        Translator(folders)


def test_members_read_the_same_text(tmp_path: Path) -> None:
    for name, value in (("languages", ["en", "fr"]), ("text", {"post_process": None})):
        other = changed(AR, tmp_path / name)
        config = json.loads((other / "config.json").read_text(encoding="utf-8"))
        (other / "config.json").write_text(json.dumps({**config, name: value}), encoding="utf-8")
        with pytest.raises(ValueError, match=f"do not decode as one: their {name} are"):
            Translator([AR, other])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text('{"members": 3}')
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        Translator(damaged)


@pytest.mark.parametrize("model", [AR, IB])
def test_scores_of_translations(model: Path) -> None:
    """What a model writes has the score that it has written it with."""
    translator = Translator(model, beam=4, lenpen=0.8, length_penalty="fairseq", words_after_end="ignore")
    texts = ["She falls asleep.", "He reads a book.", "", "The old doctor sees a very small car."]
    found = translator.translations(texts)
    scores = translator.score(texts, [each.text for each in found])
    for one, score in zip(found, scores, strict=True):
        if one.pieces:
            assert score.pieces == one.pieces
            assert score.score == pytest.approx(one.score, abs=12 * 10 * 2**-24 * 100)
            assert sum(score.of_pieces) / len(score.of_pieces) ** 0.8 == pytest.approx(score.score, rel=1e-6)
    with pytest.raises(ValueError, match="4 sources and 1 targets"):
        translator.score(texts, [""])
    with pytest.raises(ValueError, match=f"a translation has .* pieces, {model} writes at most"):
        translator.score(["a"], ["Er " * 2000])


def run(module: Any, words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    monkeypatch.setattr(sys, "argv", ["amlp-fairseq", *words])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    module.main()
    return str(capsys.readouterr().out)


def test_prefixes_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, prefixes = tmp_path / "in.txt", tmp_path / "prefixes.txt"
    source.write_text(f"{TEXT}\nHe sleeps.\n", encoding="utf-8")
    prefixes.write_text("Sie ist \nDer\n", encoding="utf-8")
    words = ["--model", str(AR), "--input", str(source)]
    shown = run(translate, [*words, "--target-prefix", str(prefixes)], "", monkeypatch, capsys).splitlines()
    assert [line[:3] for line in shown] == ["Sie", "Der"]
    assert shown[0].startswith("Sie ist ")
    objects = f'{{"text": "{TEXT}", "prefix": "Sie ist "}}\n{{"text": "He sleeps.", "prefix": "Der"}}\n'
    source.write_text(objects, encoding="utf-8")
    assert run(translate, [*words, "--jsonl-input"], "", monkeypatch, capsys).splitlines() == shown
    for wrong, message in (("[]", "line 1: an object with 'text'"), ('{"text": 1}', "are strings"), ("{", "line 1: ")):
        source.write_text(wrong + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            run(translate, [*words, "--jsonl-input"], "", monkeypatch, capsys)
    for count, message in ((1, "has more lines than the text, which has 1"), (3, "has fewer lines than the text")):
        source.write_text("He sleeps.\n" * count, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            run(translate, [*words, "--target-prefix", str(prefixes)], "", monkeypatch, capsys)
    before = prefixes.read_text(encoding="utf-8")
    for option in ("--target-prefix", "--target-suffix"):
        with pytest.raises(ValueError, match=f"--output {prefixes} is the text"):
            run(translate, [*words, option, str(prefixes), "--output", str(prefixes)], "", monkeypatch, capsys)
    assert prefixes.read_text(encoding="utf-8") == before
    source.write_text("He sleeps.\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^line 2 is empty, its --target-prefix or --target-suffix is not: 'Der'"):
        run(translate, [*words, "--target-prefix", str(prefixes)], "", monkeypatch, capsys)
    source.write_text("He sleeps.\nHe reads. He sleeps.\nHe\n", encoding="utf-8")
    prefixes.write_text(f"Er\nEr liest.\n{'a ' * 400}\n", encoding="utf-8")
    for size in ("1000", "2"):
        with pytest.raises(ValueError, match=r"^line 3: --target-prefix.* of 400 words exceeds the 200 words"):
            run(translate, [*words, "--target-prefix", str(prefixes), "--buffer-size", size], "", monkeypatch, capsys)
    for packed in (gzip.compress(b"Er\n"), lzma.compress(b"Er\n")):
        prefixes.write_bytes(packed)
        with pytest.raises(ValueError, match=r"prefixes\.txt is compressed: unpack it first"):
            run(translate, [*words, "--target-prefix", str(prefixes)], "", monkeypatch, capsys)
    prefixes.write_bytes(b"Er\n\xff\n")
    with pytest.raises(ValueError, match=r"prefixes\.txt, line 2: .*utf-8"):
        run(translate, [*words, "--target-prefix", str(prefixes)], "", monkeypatch, capsys)
    source.write_text('{"text": "He sleeps.\\nHe reads."}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"^line 1: a text with a line feed"):
        run(translate, [*words, "--jsonl-input"], "", monkeypatch, capsys)
    printed = run(translate, [*words, "--jsonl-input", "--jsonl"], "", monkeypatch, capsys).splitlines()[-1]
    assert json.loads(printed)["text"].count("\n") == 1
    for more in (["--jsonl-input", "--target-prefix", "p"], ["--shards", "a", "--output", "b", "--target-suffix", "p"]):
        with pytest.raises(ValueError, match="--target-suffix"):
            run(translate, [*words[:2], *more], "", monkeypatch, capsys)


def test_score_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("She falls asleep.\nHe\n", encoding="utf-8")
    target.write_text("Sie schläft ein.\n\n", encoding="utf-8")
    words = ["--model", str(AR)]
    files = ["--source", str(source), "--target", str(target)]
    shown = run(score_pairs, [*words, *files], "", monkeypatch, capsys)
    expected = Translator(AR).score(["She falls asleep.", "He"], ["Sie schläft ein.", ""])
    assert shown.splitlines() == [f"{each.score:.4f}" for each in expected]
    piped = "She falls asleep.\tSie schläft ein.\nHe\t\n"
    assert run(score_pairs, words, piped, monkeypatch, capsys) == shown
    line = json.loads(run(score_pairs, [*words, *files, "--jsonl"], "", monkeypatch, capsys).splitlines()[0])
    assert (line["score"], tuple(line["pieces"])) == (expected[0].score, expected[0].pieces)
    assert tuple(line["log_probabilities"]) == expected[0].of_pieces
    for text, message in (("a\n", "line 1 of standard input has 0 tab"), ("a\tb\na\tb\tc\n", "line 2 .* 2 tab")):
        with pytest.raises(ValueError, match=message):
            run(score_pairs, words, text, monkeypatch, capsys)
    for more in (["--beam", "3"], ["--temperature", "2"], ["--long", "refuse"], ["--no-split-sentences"]):
        with pytest.raises(ValueError, match=f"{more[0].replace('--no-', '--')} has no effect on the score"):
            run(score_pairs, [*words, *files, *more], "", monkeypatch, capsys)
    with pytest.raises(ValueError, match="--source FILE and --target FILE"):
        run(score_pairs, [*words, "--source", str(source)], "", monkeypatch, capsys)
    target.write_text(f"Er\n{'a ' * 2000}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^line 2: a translation has \d+ pieces"):
        run(score_pairs, [*words, *files], "", monkeypatch, capsys)
    target.write_bytes(b"a\nb\xff\n")
    with pytest.raises(ValueError, match=r"t, line 2: .*utf-8"):
        run(score_pairs, [*words, *files], "", monkeypatch, capsys)
    monkeypatch.setattr(sys, "argv", ["amlp-fairseq score-pairs", *words])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\tb\na\tb\xff\n")))
    with pytest.raises(ValueError, match=r"^standard input, line 2: .*utf-8"):
        score_pairs.main()
    source.write_text("a\n", encoding="utf-8")
    target.write_text("a\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match="ends before line 2"):
        run(score_pairs, [*words, *files], "", monkeypatch, capsys)


def test_serve_names_all_models() -> None:
    assert serve.name_of(AR) == "ar"
    assert serve.name_of(Path(f"{AR}:{IB}/")) == "ar:ibdecoder"
