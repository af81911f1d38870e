"""What a Translator is given that it cannot use: one line that names it. What is long: nothing of it is left out."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest

from amlp_fairseq import Translator
from amlp_fairseq.translator import decoding_options

MODEL = commands.ROOT / "examples/models/ar"


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


@pytest.mark.parametrize(("name", "value"), [("print_step", True), ("source_lang", "de"), ("upsample_primary", 3)])
def test_options_that_are_not_of_decoding(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^Translator: '{name}' is unknown; "):
        Translator(MODEL, **{name: value})


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
    assert Translator(MODEL, lenpen=1).cfg.generation.lenpen == 1


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


def test_long_words(translator: Translator) -> None:
    """An address, in a sentence; and text without spaces. Their parts are translated one by one."""
    texts = ["See https://example.org/" + "a-very/long_path&" * 8 + " today.", "thefriendhasdrunkmilk" * 9]
    for text, translation in zip(texts, translator.translations(texts), strict=True):
        read = " ".join(translation.source_pieces)
        assert len(translation.source_pieces) > translator.max_length
        assert translator.text.decode(read).replace(" ", "") == text.replace(" ", "")
        assert translation.text


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
