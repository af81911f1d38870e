"""A model of CTranslate2 writes the words that the model folder writes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from small_systems import TINY, System
from test_model_folders import folder_of, untrained

from amlp_fairseq import Translator
from amlp_fairseq.text.pipeline import TextPipeline
from amlp_fairseq.text.subwords import learn
from amlp_fairseq.translator.exported_program import Text

MODEL = commands.ROOT / "examples/models/ar"
#: Unlike the model's training: with another beam or length penalty it writes other words.
SENTENCES = [
    "A man sleeping in a green room on a couch.",
    "A boy wearing headphones sits on a woman's shoulders.",
    "A balding man wearing a red life jacket is sitting in a small boat.",
    "",
    "A brown dog is running after the black dog.",
    "A young child is standing alone on some jagged rocks.",
    "Three young children stand around a blue and white barrel.",
    "A half naked man is sleeping on his chair outdoors.",
    "An Asian girl in a green hat and apron is serving drinks on a tray.",
]


def package(folder: Path, *words: object) -> Path:
    commands.run("amlp_fairseq.cli.main", "package", MODEL, "--out", folder, *words)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        *[(), ("--length-penalty", "gnmt", "--lenpen", 2), ("--beam", 5, "--unnormalized")],
        ("--beam", 5, "--repetition-penalty", 4.0),
    ],
    ids=str,
)
def test_the_words_of_the_model_folder(words: tuple[object, ...], tmp_path: Path) -> None:
    """By the command that export prints, as it prints it, of data of text."""
    pytest.importorskip("ctranslate2")
    folder = package(tmp_path / "model", "--max-length", 60, *words) if words else MODEL
    expected = Translator(folder).translate(SENTENCES)
    others: Any = {"lenpen": 1.0, "length_penalty": "fairseq", "unnormalized": False, "repetition_penalty": 1.0}
    assert expected != Translator(folder, beam=2, **others).translate(SENTENCES)  # what CTranslate2 does by itself
    printed = commands.run("amlp_fairseq.cli.main", "export", "--model", folder, "--out", tmp_path / "out")
    (tmp_path / "text.en").write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    python = f'python() {{ "{sys.executable}" "$@"; }}; {printed.splitlines()[-1].removeprefix("next: ")}'
    subprocess.run(["bash", "-c", python], cwd=tmp_path, check=True)
    assert (tmp_path / "text.de").read_text(encoding="utf-8").splitlines() == expected


def test_what_is_cut_off_is_said(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = package(tmp_path / "model", "--max-len-b", 4, "--max-length", 5, "--beam", 1)
    commands.run("amlp_fairseq.cli.main", "export", "--model", folder, "--out", tmp_path / "out")
    done = subprocess.run(
        [sys.executable, tmp_path / "out/translate.py"], input=SENTENCES[0], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == Translator(MODEL, beam=1, max_len_b=4).translate(SENTENCES[:1])
    assert [line.split(maxsplit=1)[0] for line in done.stderr.splitlines()] == ["1", "1"]
    text = f"a\n{'a ' * 1500}\n"
    done = subprocess.run(
        [sys.executable, tmp_path / "out/translate.py"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "line 2 with 1500 pieces" in done.stderr


def test_weights_in_int8(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    import ctranslate2

    for weights, kind in (("int8", "int8_float32"), ("bfloat16", "float32")):
        folder = package(tmp_path / weights, "--weights", weights)
        commands.run("amlp_fairseq.cli.main", "export", "--model", folder, "--out", tmp_path / f"{weights}-out")
        assert ctranslate2.Translator(str(tmp_path / f"{weights}-out")).compute_type == kind


@pytest.mark.parametrize("text", [{"tokenizer": "moses", "lowercase": True, "split_hyphens": True}, {}], ids=str)
def test_text_is_cut_up_as_by_the_plugin(text: dict[str, Any], tmp_path: Path) -> None:
    """Text of subword_nmt; that of sentencepiece is tested above."""
    line = "She said: \"It's a well-known\u00a0fact & fun,\" didn't she? "
    (tmp_path / "text").write_text(f"{line}\n" * 5, encoding="utf-8")
    learn("subword_nmt", [tmp_path / "text"], tmp_path / "bpecodes", 30, 1.0, 0)
    text = {"post_process": "subword_nmt", "normalize": True, **text}
    own = TextPipeline.of(tmp_path, ("en", "de"), text)
    exported = Text(tmp_path, {"languages": ["en", "de"], "text": text})
    assert exported.cut(line) == own.encode(line).split()
    assert exported.join(exported.cut(line)) == own.decode(own.encode(line))
    plain = Text(tmp_path, {"languages": ["en", "de"], "text": {}})
    assert plain.join(plain.cut(line)) == " ".join(line.split())


@pytest.mark.parametrize(
    ("words", "named", "way"),
    [
        (["--no-repeat-ngram-size", 2], "--no-repeat-ngram-size 2", "--no-repeat-ngram-size 0"),
        (["--rescore-path", MODEL], "--rescore-path ", "--rescore-path ''"),
        (["--temperature", 0.5, "--unkpen", 3], "--temperature 0.5 --unkpen 3", "--temperature 1.0 --unkpen 0"),
    ],
)
def test_decoding_that_it_does_not_have(words: list[object], named: str, way: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = package(tmp_path / "model", *words)
    export = ["export", "--model", folder, "--out", tmp_path / "out"]
    said = commands.run("amlp_fairseq.cli.main", *export, check=False).splitlines()[-1]
    assert f" with {named}" in said
    assert f"(amlp-fairseq package {folder} --out DIR {way})" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("ibdecoder", "CTranslate2 writes from left to right, one word a step; this model does not"),
        ("aan", "CTranslate2 has softmax attention only; this model has softmax, average, softmax"),
        ("cmlmc", "CTranslate2 has no CMLMCTransformerModel: only autoregressive Transformers"),
    ],
)
def test_other_models_are_refused(row: str, message: str, system: Callable[[str], System], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = folder_of(system(row), tmp_path / "model")
    words = ["export", "--model", folder, "--out", tmp_path / "exported"]
    printed = commands.run("amlp_fairseq.cli.main", *words, check=False)
    assert printed.splitlines()[-1] == f"amlp-fairseq export: {message}"
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arch", "lstm"], "CTranslate2 has no LSTMModel: only autoregressive Transformers"),
        (["--arch", "fconv"], "CTranslate2 has no FConvModel: only autoregressive Transformers"),
        (["--activation-fn", "tanh"], "nothing for --activation-fn tanh (it has gelu, gelu_accurate, gelu_fast, relu,"),
        (["--no-token-positional-embeddings"], "nothing for --no-token-positional-embeddings"),
        (["--decoder-output-dim", "8"], "nothing for --decoder-output-dim that is not --decoder-embed-dim"),
        (["--encoder-layers", "0"], "nothing for --encoder-layers 0"),
        (["--decoder-layers", "0", "--cross-self-attention"], "for --decoder-layers 0, --cross-self-attention"),
        (
            ["--encoder-normalize-before", "--decoder-normalize-before", "--no-decoder-final-norm"],
            "nothing for --no-decoder-final-norm",
        ),
        (["--adaptive-softmax-cutoff", "10"], "nothing for --adaptive-softmax-cutoff"),
        (["--no-cross-attention"], "nothing for --no-cross-attention"),
        (["--quant-noise-pq", "0.1"], "nothing for --quant-noise-pq"),
    ],
)
def test_options_that_it_does_not_have(words: list[str], message: str, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from amlp_fairseq.translator.ctranslate2_model import convert

    small = ["--arch", "transformer", *TINY[: TINY.index("--max-source-positions")], "--encoder-layers", "1"]
    _, task, model = untrained(data, *([] if "--arch" in words else small), *words)
    with pytest.raises(ValueError, match=re.escape(message)):
        convert(model, task, tmp_path / "exported")
