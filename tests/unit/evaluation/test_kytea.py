"""English-Japanese: the text as it is given, and BLEU on the words that KyTea finds, with models made by hand."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import sacrebleu
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from amlp_fairseq.corpora import prepare
from amlp_fairseq.evaluation import score
from amlp_fairseq.evaluation.evaluate import Evaluation
from amlp_fairseq.evaluation.kytea import kytea_bleu
from amlp_fairseq.training.config import load

REFERENCES = ["今日はいい天気です。", "私は猫が好きだ。", "Windows 95 を使う人はいない。"]
#: As a model writes them: words, with spaces between them.
HYPOTHESES = ["今日 は 天気 です 。", "私 は 犬 が 好き だ 。", "Windows 95 を 使う 人 は いる 。"]


def write_model(path: Path, boundary: int) -> None:
    """A model in KyTea's text form that has a bias and no features: each character is a word, or (-1) each line."""
    options = "-notags;-numtags 0;-charw 3;-charn 3;-typew 3;-typen 3;-dicn 4;-eps 0.1;-solver 1;;characters;;"
    weights = f"solver_type L2R_L2LOSS_SVC_DUAL;nr_class 2;label 1 -1;nr_feature 0;bias 1;mult 1;w;{boundary};"
    features = f"lookup;0;0;0;0;0;0;;{boundary};;"
    dictionaries = "0;1;0;;n;0;0;0"
    lines = ["KyTea 0.4.0 T utf8", *";".join([options, weights, features, dictionaries]).split(";")]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model for which each character is a word, where KyTea finds it."""
    pytest.importorskip("Mykytea")  # it has wheels for Linux on x86_64
    path = tmp_path / "model.txt"
    write_model(path, 1)
    monkeypatch.setenv("KYTEA_MODEL", str(path))
    return path


def test_words_are_those_of_the_model(characters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of one character are those of sacreBLEU's tokeniser for characters."""
    result = kytea_bleu(HYPOTHESES, [REFERENCES])
    plain = [["".join(line.split()) for line in text] for text in (HYPOTHESES, REFERENCES)]
    oracle = sacrebleu.BLEU(tokenize="char", smooth_method="none").corpus_score(plain[0], [plain[1]])
    assert 20 < result["kytea_bleu"] == round(oracle.score, 2) < 90
    assert kytea_bleu(plain[0], [REFERENCES]) == result
    checksum = hashlib.sha256(characters.read_bytes()).hexdigest()[:12]
    assert re.fullmatch(
        rf"nrefs:1\|case:mixed\|.*tok:none\|smooth:none\|.*\|kytea:[\d.]+\|model:{checksum}", result["kytea_signature"]
    )

    lines = characters.with_name("lines.txt")
    write_model(lines, -1)
    monkeypatch.setenv("KYTEA_MODEL", str(lines))
    assert kytea_bleu(HYPOTHESES, [REFERENCES])["kytea_bleu"] == 0  # a line that is one word has no pair of words


def test_what_is_missing_is_named_before_anything_is_decoded(
    characters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load("ibdecoder", "wat17_en_ja", "paper")
    arguments: Any = recipe, tmp_path, tmp_path, {}, [], "ibdecoder", "amlp-fairseq"
    assert Evaluation(*arguments).metric.main == "kytea_bleu"
    characters.write_text("no model\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"KyTea's model {characters}: Badly formed model"):
        Evaluation(*arguments)
    monkeypatch.setenv("KYTEA_MODEL", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=rf"KyTea's model {tmp_path}/none does not exist: KYTEA_MODEL must name it"):
        Evaluation(*arguments)
    monkeypatch.setitem(sys.modules, "Mykytea", None)
    with pytest.raises(ValueError, match=r'scored by KyTea .*pip install "amlp-fairseq\[kytea\]"'):
        Evaluation(*arguments)


def test_from_the_files_to_the_score(
    characters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words stay as they are; in the end they are scored as the paper does."""
    texts = {"en": ["it is fine today .", "i like dogs .", "nobody uses Windows 95 ."], "ja": HYPOTHESES}
    for part in ("train", "valid", "test"):
        for language, text in texts.items():
            path = tmp_path / f"given/{part}.{language}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(line + "\n" for line in text), encoding="utf-8")
    commands.call(prepare, monkeypatch, "wat17_en_ja", tmp_path / "out", data=tmp_path / "given", workers=1)
    folder = tmp_path / "out/data-bin"
    description = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    facts = {"corpus": "wat17_en_ja", "languages": ["en", "ja"], "post_process": None, "tokenizer": None}
    assert facts.items() <= description.items()
    dictionary = Dictionary.load(str(folder / "dict.ja.txt"))
    for part in ("train", "valid", "test"):
        data = load_indexed_dataset(str(folder / f"{part}.en-ja.ja"), dictionary)
        assert [dictionary.string(ids) for ids in data] == HYPOTHESES
    assert (folder / "raw/test.ja").read_text(encoding="utf-8").splitlines() == HYPOTHESES

    (tmp_path / "generated").write_text(
        "".join(f"D-{i}\t-0.5\t{line}\n" for i, line in enumerate(REFERENCES)), encoding="utf-8"
    )
    capsys.readouterr()
    commands.call(score, monkeypatch, tmp_path / "generated", folder / "raw/test.ja", metric="kytea")
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["kytea_bleu"] == kytea_bleu(REFERENCES, [HYPOTHESES])["kytea_bleu"] > 0
    assert {"kytea_signature", "chrf", "chrf_signature"} <= result.keys()
    assert not {"bleu", "tokenised_bleu", "compound_split_bleu"} & result.keys()
