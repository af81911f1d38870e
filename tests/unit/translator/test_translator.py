"""What a Translator makes of texts: every sentence, in its place. What it cannot use is one line that names it."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amlp_fairseq import Translator
from amlp_fairseq.compat.internals import TASK_REGISTRY
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.backend import Found
from amlp_fairseq.translator.options import CallOptions, Options
from amlp_fairseq.translator.pytorch_backend import MAX_SEARCHES

MODEL = commands.ROOT / "examples/models/ar"


def folder_with(out: Path, **config: Any) -> Path:
    """The model with other values in its config.json."""
    shutil.copytree(MODEL, out)
    content = json.loads((out / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(content | config), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(MODEL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nbest": 0}, "nbest=0: a whole number from 1 is needed"),
        ({"beam": 0}, "beam=0: a whole number from 1 is needed"),
        ({"beam": "4"}, "beam='4': a whole number is needed"),
        ({"beam": 2.5}, "beam=2.5: a whole number is needed"),
        ({"beam": True}, "beam=True: a whole number is needed"),
        ({"lenpen": float("nan")}, "lenpen=nan: a number is needed"),
        ({"max_len_a": float("inf")}, "max_len_a=inf: a number is needed"),
        ({"lenpen": 11.0}, "--lenpen 11.0 must be between -10 and 10"),
        ({"lenpen": "1"}, "lenpen='1': a number is needed"),
        ({"unnormalized": "no"}, "unnormalized='no': True or False is needed"),
        ({"draft_words": None}, "draft_words=None: a whole number is needed"),
        ({"length_penalty": "x"}, "length_penalty='x' is not one of fairseq, gnmt"),
        ({"draft": "sources"}, "draft='sources' is not one of source, none"),
        ({"decode_dtype": "int4"}, "decode_dtype='int4' is not one of float32, bfloat16, float16, int8"),
        ({"max_tokens": "a"}, "max_tokens='a': a whole number from 1 is needed"),
        ({"max_length": 0}, "max_length=0: a whole number from 1 is needed"),
        ({"nbest": 9}, "nbest=9 is more than beam=4 finds: raise beam, or lower nbest"),
        ({"bean": 4}, "Translator: 'bean' is unknown; did you mean 'beam'?"),
        ({"device": "meta"}, "device='meta' cannot be used: Cannot copy out of meta tensor; no data!"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Translator(MODEL, **options)


@pytest.mark.parametrize(("name", "value"), [("print_step", True), ("upsample_primary", 3)])
def test_options_that_are_not_of_decoding(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^Translator: '{name}' is unknown; "):
        Translator(MODEL, **{name: value})


@pytest.mark.parametrize("given", [{"source_lang": "de"}, {"target_lang": "fr"}])
def test_languages_of_a_model_of_one_pair(given: dict[str, str], translator: Translator) -> None:
    for call in (lambda: Translator(MODEL, **given), lambda: translator.translate(TEXT, **given)):
        with pytest.raises(ValueError, match=rf"^source_lang, target_lang: {MODEL} translates en to de, not "):
            call()
    assert translator.translate(TEXT, source_lang="en", target_lang="de") == translator.translate(TEXT)


def test_a_colon_in_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rename it without ':'"):
        Translator(shutil.copytree(MODEL, tmp_path / "a:b"))


def test_options_of_the_folder(tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["decoding"]["lenpen"] = float("nan")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"^lenpen=nan: a number is needed$"):
        Translator(folder)
    assert Translator(folder, lenpen=0.6).translate(["he said"]) == Translator(MODEL).translate(["he said"])


def test_another_task_behind_a_command() -> None:
    own = "translation_interleaved"
    assert decoding_options.parse(["--beam", "2", "--task", own], own) == {"beam": 2}
    message = f"^--task translation: the model decodes with {own}, leave --task out$"
    with pytest.raises(ValueError, match=message):
        decoding_options.parse(["--task", "translation"], own)


def test_whole_numbers_are_numbers() -> None:
    assert Translator(MODEL, lenpen=1).pytorch().cfg.generation.lenpen == 1


TEXT = ["He says that the student can find the big cars."]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("ar", {"beam": 1, "max_len_b": 3}),
        ("ar", {"nbest": 3, "print_alignment": "hard", "lenpen": 0.0, "length_penalty": "gnmt"}),
        ("ibdecoder", {"nbest": 2, "words_after_end": "count"}),
        ("cmlmc", {"iter_decode_max_iter": 1}),
    ],
)
def test_options_of_a_call(model: str, options: CallOptions) -> None:
    """As if the model had been loaded with them; the next call is as before."""
    folder = MODEL.parent / model
    translator = Translator(folder)
    before = translator.translations(TEXT)
    assert translator.translations(TEXT, **options) == Translator(folder, **options).translations(TEXT) != before
    assert translator.translate(TEXT, **options) == [translator.translations(TEXT, **options)[0].text]
    assert translator.translations(TEXT) == before


def test_options_of_a_call_use_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One inference model is made, and not all searches are kept."""
    translator = Translator(MODEL, backend="pytorch")
    translator.translate(TEXT)
    backend = translator.pytorch()
    inference_models = backend.search({}, translator.languages).generator.inference_models
    (made,) = inference_models([backend.model])
    monkeypatch.setattr(inference_models, "prepare", None)
    for length in range(1, MAX_SEARCHES + 5):
        translator.translate(TEXT, max_len_b=length)
    assert backend.search({"max_len_b": 1}, translator.languages).generator.inference_models([backend.model]) == [made]
    assert len(backend._others) == MAX_SEARCHES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode_dtype": "int8"}, f"decode_dtype cannot be given for one call: Translator({str(MODEL)!r}, decode_dty"),
        ({"draft_words": 3}, "draft_words cannot be given for one call: "),
        ({"bean": 2}, "translate: 'bean' is unknown; did you mean 'beam'?"),
        ({"beam": 0}, "beam=0: a whole number from 1 is needed"),
        ({"beam": [2]}, "beam=[2]: a whole number is needed"),
        ({"nbest": 5}, "nbest=5 is more than beam=4 finds"),
        ({"lenpen": "1"}, "lenpen='1': a number is needed"),
        ({"print_alignment": "pairs"}, "print_alignment='pairs' is not one of hard, soft"),
        ({"iter_decode_max_iter": 3}, "--task translation_interleaved does not have --iter-decode-max-iter 3"),
    ],
)
def test_mistakes_in_options_of_a_call(options: Any, message: str, translator: Translator) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        translator.translate(TEXT, **options)


def test_with() -> None:
    with Translator(MODEL) as translator:
        assert repr(translator) == f"<Translator {MODEL}: en to de, cpu>"
        assert translator.translate(TEXT)
    assert translator._engine is translator._pytorch is None
    assert repr(translator) == f"<Translator {MODEL}: en to de, closed>"
    with pytest.raises(RuntimeError, match="closed"):
        translator.translate(TEXT)


def test_typed_options() -> None:
    """Every option that a task of the plugin honours has a type, and every one that has is an option."""
    tasks = [TASK_REGISTRY[name] for name in ("translation_interleaved", "translation_cmlmc")]
    honoured = {name for task in tasks for name in task.HONOURED_GENERATION_OPTIONS}
    typed = Options.__annotations__.keys()
    others = decoding_options.OUTPUT | decoding_options.BEYOND_TEXT.keys() | {"_name", "post_process", "path"}
    of_tasks = (decoding_options.TASK_OPTIONS | honoured) - others
    assert of_tasks - typed == set()
    assert typed - set().union(*map(decoding_options.known, ("translation_interleaved", "translation_cmlmc"))) == set()


def test_texts(translator: Translator) -> None:
    texts: list[Any] = ["he said", None]
    with pytest.raises(TypeError, match=r"^text 2 is of type NoneType: a string is needed$"):
        translator.translate(texts)
    with pytest.raises(ValueError, match=r"^text 2 has half a surrogate pair, '\\udcff' at character 3: it is not"):
        translator.translate(["he said", "he \udcff"])


def test_texts_may_come_one_by_one(translator: Translator) -> None:
    texts = ["he said", "", "she sleeps"]
    assert translator.translate(iter(texts)) == translator.translate(texts)  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies(copied: Any, translator: Translator) -> None:
    with pytest.raises(TypeError, match=r"^a Translator cannot be copied or pickled: make another one, "):
        copied(translator)


def test_after_a_fork(translator: Translator) -> None:
    """It would wait for ever: for the threads of torch, or for a thread that was translating."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            translator.translate(["he said"])
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 1000) == b"this Translator is of another process: make one in each, or start them with spawn"
    os.close(read)


def test_every_sentence_is_translated(translator: Translator) -> None:
    text = "She falls asleep. He sleeps."
    assert translator.translate([text]) == ["Sie schläft ein. Er schläft."]
    (whole,) = translator.translations([text])
    alone = translator.translations(["She falls asleep.", "He sleeps."])
    assert [part.source for part in whole.parts] == ["She falls asleep.", "He sleeps."]
    for part, sentence in zip(whole.parts, alone, strict=True):
        assert (part.text, part.calls, part.pieces) == (sentence.text, sentence.calls, sentence.pieces)
        assert part.source_pieces == sentence.source_pieces
        assert part.score == pytest.approx(sentence.score, abs=1e-5)
    assert whole.calls == sum(each.calls for each in alone)
    assert whole.score == pytest.approx(sum(each.score for each in alone) / 2, abs=1e-5)
    assert whole.pieces == alone[0].pieces + alone[1].pieces
    assert alone[0].parts == ()


def test_texts_as_a_whole(tmp_path: Path, translator: Translator) -> None:
    """Where it is said to the class, or by the folder, which the class overrules."""
    text, documents = "She falls asleep.\nHe sleeps.", folder_with(tmp_path / "model", split_sentences=False)
    (found,) = Translator(MODEL, split_sentences=False).translations([text])
    assert found.parts == ()
    assert found.source_pieces == tuple(translator.text.encode(text).split())
    assert Translator(documents).translations([text]) == [found]
    assert Translator(documents, split_sentences=True).translate([text]) == translator.translate([text])
    with pytest.raises(ValueError, match=r"^split_sentences='no': True or False is needed$"):
        Translator(MODEL, split_sentences="no")  # type: ignore[arg-type]


def test_line_feeds_come_back(translator: Translator) -> None:
    text = "\n\nShe falls asleep. He sleeps.  \r\n\n He sleeps.\t\n"
    assert translator.translate([text]) == ["\n\nSie schläft ein. Er schläft.  \r\n\nEr schläft.\t\n"]
    assert translator.translate(["\n", " \t", " She falls asleep. "]) == ["\n", "", "Sie schläft ein."]


@pytest.mark.parametrize(
    ("source", "target", "text", "expected"),
    [
        ("en", "zh", "She falls asleep. He sleeps.", "{}{}"),
        ("en", "tha_Thai", "She falls asleep. He sleeps.", "{}{}"),
        ("en", "kor_Hang", "She falls asleep. He sleeps.", "{} {}"),
        ("zh-CN", "ja", "She falls asleep。\nHe sleeps。", "{}\n{}"),
        ("zho_Hans", "de", "她睡着了。他睡觉。", "{} {}"),
        ("jpn_Jpan", "yue_Hant", "彼女は眠る。彼は寝る。", "{}{}"),
    ],
)
def test_the_target_language_says_what_is_between(
    source: str, target: str, text: str, expected: str, tmp_path: Path
) -> None:
    translator = Translator(folder_with(tmp_path / "model", languages=[source, target]))
    (found,) = translator.translations([text])
    assert len(found.parts) == 2
    assert all(part.text for part in found.parts)
    assert found.text == expected.format(*(part.text for part in found.parts))


def test_alternatives_and_alignments_of_several_sentences() -> None:
    """The best combinations of all; the pairs of pieces are counted on."""
    (found,) = Translator(MODEL, nbest=4, print_alignment="hard").translations(["She sleeps. He drinks tea. Why?"])
    assert [len(part.alternatives) for part in found.parts] == [3] * 3
    hypotheses = [[(part.text, part.score), *part.alternatives] for part in found.parts]
    combinations = [
        (" ".join(text for text, _ in each), sum(score for _, score in each) / 3)
        for each in itertools.product(*hypotheses)
    ]
    expected = sorted(combinations, key=lambda each: -each[1])[:4]
    assert found.text == expected[0][0]
    assert [score for _, score in found.alternatives] == pytest.approx([score for _, score in expected[1:]])
    assert [text for text, _ in found.alternatives] == [text for text, _ in expected[1:]]

    pairs = {(found.source_pieces[source], found.pieces[target]) for source, target in found.alignment}
    assert len(found.alignment) == sum(len(part.alignment) for part in found.parts) > 0
    assert pairs == {
        (part.source_pieces[source], part.pieces[target])
        for part in found.parts for source, target in part.alignment
    }  # fmt: skip


LINES = st.text(alphabet='abÄ.!?… \u2028\x0c\r\t\n"”)1。と।\u0301', max_size=80)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(LINES, max_size=3), st.booleans())
def test_nothing_is_lost(texts: list[str], whole: bool) -> None:
    """Of any text, by a model that copies what it reads."""
    translator = copying(split_sentences=not whole)
    for text, found in zip(texts, translator.translations(texts), strict=True):
        if whole:
            assert found.text.split() == text.split()
        else:
            assert [line.split() for line in found.text.split("\n")] == [line.split() for line in text.split("\n")]
        assert sum(part.cut for part in found.parts) == found.cuts


def copying(**options: Any) -> Translator:
    """A translator from English to German that copies, and reads at most four words, of twelve letters in all."""
    translator = Translator.__new__(Translator)
    translator.languages, translator.max_length, translator.nbest, translator.long = ("en", "de"), 12, 1, "split"
    translator.split_sentences, translator.tokens = options["split_sentences"], None
    translator._pipelines = {("en", "de"): Letters()}  # type: ignore[dict-item]
    translator._search = lambda *_: Copying()  # type: ignore[method-assign]
    return translator


class Copying:
    nbest = 1

    def __call__(self, sources: list[str], given: object) -> list[list[Found]]:
        return [[Found(source, 0.0, 1)] for source in sources]


class Letters:
    """A letter is a piece, and a word has at least three."""

    languages = ("en", "de")

    def encode(self, text: str) -> str:
        return " ".join("\1" + " ".join(word.ljust(3, "\0")) for word in text.split())

    def decode(self, pieces: str) -> str:
        return pieces.replace(" ", "").replace("\1", " ").replace("\0", "").strip()


def test_long_words(translator: Translator) -> None:
    """An address, in a sentence; and text without spaces. Their parts are translated one by one."""
    texts = ["See https://example.org/" + "a-very/long_path&" * 8 + " today.", "thefriendhasdrunkmilk" * 9]
    for text, translation in zip(texts, translator.translations(texts), strict=True):
        read = " ".join(translation.source_pieces)
        assert len(translation.source_pieces) > translator.max_length
        assert translator.text.decode(read).replace(" ", "") == text.replace(" ", "")
        assert translation.text


def test_cuts_are_between_words(translator: Translator) -> None:
    """And said. The limit is the folder's."""
    text = "He sleeps. " + "the friend has drunk milk and " * 8 + "he sleeps. She sleeps."
    (found,) = translator.translations([text])
    words = [word for part in found.parts for word in part.source.split()]
    assert words == text.split()
    assert all(len(part.source_pieces) <= 41 for part in found.parts)
    assert [part.cut for part in found.parts] == [False, *[True] * (len(found.parts) - 3), False, False]
    assert found.cuts == len(found.parts) - 3 >= 1
    assert translator.translations(["He sleeps."])[0].cuts == 0

    (truncated,) = Translator(MODEL, long="truncate").translations([text])
    assert [part.source for part in truncated.parts] == [found.parts[index].source for index in (0, 1, -1)]
    assert [part.cut for part in truncated.parts] == [False, True, False]
    assert truncated.cuts == 1


def test_a_document_is_cut_between_sentences() -> None:
    translator = Translator(MODEL, split_sentences=False, max_length=20)
    (found,) = translator.translations(["He sleeps. She has drunk milk. " * 3])
    assert " ".join(part.source for part in found.parts) == ("He sleeps. She has drunk milk. " * 3).strip()
    assert all(part.source.endswith(".") for part in found.parts)
    assert max(part.source.count(".") for part in found.parts) > 1
    assert [part.cut for part in found.parts] == [True, False]


def test_limits(tmp_path: Path) -> None:
    """Of the folder, of the command line, of the model's positions."""
    assert Translator(MODEL).max_length == 34
    assert Translator(folder_with(tmp_path / "long", longest_source=5000)).max_length == 1022
    assert Translator(folder_with(tmp_path / "unknown", longest_source=None)).max_length == 1022
    assert Translator(MODEL, max_length=60).max_length == 60
    with pytest.raises(ValueError, match=rf"^max_length=1023: {MODEL} has positions for at most 1022 pieces$"):
        Translator(MODEL, max_length=1023)


def test_a_character_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="the character 'x' alone is too long: a larger --max-length"):
        Translator(MODEL, max_length=1).translate(["xx"])


def test_unknown_subword_units(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["text"]["post_process"] = "bpe"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=f"^{path}: post_process 'bpe' is unknown: sentencepiece, subword_nmt or"):
        Translator(tmp_path / "model")


def test_damaged_subword_units(tmp_path: Path) -> None:
    """Said when the model is loaded: a server is not ready."""
    shutil.copytree(MODEL, tmp_path / "model")
    path = tmp_path / "model/sentencepiece.bpe.model"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=f"^{path} is damaged: "):
        Translator(tmp_path / "model")
