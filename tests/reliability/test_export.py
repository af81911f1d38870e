"""A model of CTranslate2 writes the words that the model folder writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from conftest import TINY, System
from test_model_folders import folder_of, untrained

from amlp_fairseq import Translator

TRANSLATE = """
import json, sys, ctranslate2
translator = ctranslate2.Translator(sys.argv[1], device="cpu", intra_threads=1)
found = translator.translate_batch(json.load(sys.stdin), beam_size=1, max_decoding_length=9)
print(json.dumps([each.hypotheses[0] for each in found]))
"""


def test_greedy_words(system: Callable[[str], System], data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = folder_of(system("transformer"), tmp_path / "model")
    commands.run("amlp_fairseq.cli.main", "export", "--model", folder, "--out", tmp_path / "exported")
    sources = (data.parent / "raw/test.en").read_text(encoding="utf-8").splitlines()
    expected = Translator(folder, beam=1, max_len_b=8).translations(sources)
    command = [sys.executable, "-c", TRANSLATE, str(tmp_path / "exported")]
    text = json.dumps([source.split() for source in sources])
    found = json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
    assert [words[:8] for words in found] == [list(translation.pieces) for translation in expected]


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
