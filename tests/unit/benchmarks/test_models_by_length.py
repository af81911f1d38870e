"""benchmarks/long_inputs.py: whole models with the attentions that their names say, compared in one run."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import commands
import pytest

from benchmarks import long_inputs as SCRIPT

SIZES = {"embed_dim": 16, "ffn_embed_dim": 32, "layers": 2, "heads": 2, "words": 20}
MEASURED = {"lengths": [8, 3], "iterations": 3, "repeats": 2, "seconds": 10.0, "threads": 1}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    commands.call(SCRIPT, monkeypatch, *arguments, **SIZES, **MEASURED)


def built(**changes: Any) -> Any:
    usual = {"device": "cpu", "precision": "float32", "cuda_graphs": False, "systems": list(SCRIPT.SYSTEMS)}
    return SCRIPT.build(Namespace(**{**usual, **SIZES, **MEASURED, **changes}))


def test_numbers_tables_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, drawn = commands.measured(run, monkeypatch, tmp_path)
    usual = {"device": "cpu", "precision": "float32", "systems": list(SCRIPT.SYSTEMS)}
    assert result["options"] == {**usual, **SIZES, **MEASURED, "lengths": [3, 8]}

    rows = {(row["n"], row["system"]): row for row in result["results"]}
    assert list(rows) == [(n, name) for n in (3, 8) for name in SCRIPT.SYSTEMS]
    for (n, _), row in rows.items():
        assert (row["once_repeats"], row["repeats"]) == (2, 2)
        assert min(row["once_ms"], row["ms"], row["mib"]) > 0
        for key in ("once_ms", "ms"):
            assert row[f"{key}_speed_over_cmlmc"] == pytest.approx(rows[n, "cmlmc"][key] / row[key])
    assert [row["system"] for row in result["crossovers"]] == list(SCRIPT.SYSTEMS[1:])
    for found in result["crossovers"]:
        faster = {n: rows[n, found["system"]]["ms"] <= rows[n, "cmlmc"]["ms"] for n in (3, 8)}
        expected = {(True, True): "always", (True, False): "never", (False, False): "never"}
        if faster[8] and not faster[3]:
            assert 3 <= found["ms"] <= 8
        else:
            assert found["ms"] == expected[faster[3], faster[8]]

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2 : 2 + len(rows)]] == [[f"| {n}", name] for n, name in rows]
    assert all(name in drawn for name in ("cmlmc_amlp_cov", "3 iterations"))


def test_some_systems_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "numbers.json"
    run(monkeypatch, "--systems", "cmlmc_abc", "--out", out)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert [row["system"] for row in result["results"]] == ["cmlmc", "cmlmc_abc"] * 2
    assert [row["system"] for row in result["crossovers"]] == ["cmlmc_abc"]


def test_attentions_and_positions() -> None:
    workshop, _ = built(lengths=[1500])
    names = {"cmlmc_amlp_cov": "AMLPCov", "cmlmc_amlp": "AMLPPQuery", "cmlmc_abc": "ABCAttention"}
    for name in SCRIPT.SYSTEMS:
        whole = name.endswith("_linear")  # no softmax attention at all
        base = name.partition(" ")[0].removesuffix("_linear")
        model, linear = workshop.built(name).model, names.get(base, "SoftmaxAttention")
        found = {
            type(attention).__name__
            for layer in model.decoder.layers
            for attention in (layer.self_attn, layer.encoder_attn)
        }
        assert found == {linear}
        causal = "ABCAttention" if whole else "SoftmaxAttention"
        assert {type(layer.causal_attn).__name__ for layer in model.decoder.layers} == {causal}
        in_encoder = {type(layer.self_attn).__name__ for layer in model.encoder.layers}
        assert (in_encoder == {linear}) == (name.endswith("encoder") or name == "cmlmc" or whole)
        assert min(model.max_positions()) == 1502


def test_long_sentences_have_their_length() -> None:
    """The decoder would cut what is longer than its positions."""
    workshop, engines = built(lengths=[1100], systems=["cmlmc"])
    engine = engines["cmlmc"]
    (words,) = engine.read(engine.call(SCRIPT.sentence(workshop, 1100), 1)())
    assert len(words) == 1101


def test_no_numbers_when_decoding_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = SCRIPT.Ours.read
    monkeypatch.setattr(SCRIPT.Ours, "read", lambda self, result: [words[:-1] for words in right(self, result)])
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--systems", "cmlmc_amlp", "--out", tmp_path / "numbers.json")
    first, *found = str(stopped.value.code).splitlines()  # a text: Python prints it and ends with status 1
    assert first == "Decoding is wrong, nothing is measured:"
    assert [line.partition(" finds [[")[0] for line in found] == ["cmlmc", "cmlmc_amlp"]
    assert list(tmp_path.iterdir()) == []


def test_a_precision_that_the_device_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--precision", "float16")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("--precision float16 is not one of float32, bfloat16, int8\n")
