"""What type checkers and editors know of the class that people import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import commands

import amlp_fairseq
from amlp_fairseq.translator import Translator

#: A line that ends in a comment is a mistake of that kind.
PROGRAM = """
import amlp_fairseq
from amlp_fairseq import Translation, Translator
from amlp_fairseq.translator import Part

with Translator("en-de", beam=4, decode_dtype="int8", split_sentences=False) as translator:
    texts: list[str] = translator.translate(["A text."], beam=2, nbest=2)
    found: list[Translation] = translator.translations(["A text."], lenpen=0.6)
    parts: tuple[Part, ...] = found[0].parts
    score: float = found[0].alternatives[0][1] + parts[0].score
    translator.translate(["A text."], bean=2)  # call-arg
    translator.translate(["A text."], decode_dtype="int8")  # call-arg
    text: int = texts[0]  # assignment
    found[0].scores  # attr-defined
Translator("en-de", beam="4")  # arg-type
Translator("en-de", decode_dtype="int4")  # arg-type
amlp_fairseq.Trans  # attr-defined
"""


def test_mypy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", commands.ROOT / "pyproject.toml", program]
    printed = subprocess.run(command, cwd=commands.ROOT, capture_output=True, text=True, check=False).stdout
    lines = enumerate(PROGRAM.splitlines(), 1)
    expected = [(number, line.rpartition("# ")[2]) for number, line in lines if "  # " in line]
    errors = [line for line in printed.splitlines() if ": error: " in line]
    assert [(int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")) for line in errors] == expected, printed


def test_names_complete() -> None:
    assert {"Translation", "Translator"} <= set(dir(amlp_fairseq))
    assert not hasattr(amlp_fairseq, "Translater")
    assert amlp_fairseq.Translator is Translator
