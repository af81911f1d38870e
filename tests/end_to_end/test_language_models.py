"""Language models end to end: prepared, trained at a tiny size and evaluated on words and on pieces of words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import torch
import yaml
from fairseq import checkpoint_utils
from fairseq.data.data_utils import load_indexed_dataset

from amlp_fairseq.corpora import embedded_corpus

pytestmark = pytest.mark.xdist_group("language_models")  # one process trains the models

#: fairseq's own model on words, the plugin's on pieces of words.
ROWS = {"words": "lm_self_attention", "pieces": "lm_dynamicconv"}
TINY = {
    **{"base": "embedded_lm", "sizes": {"channels": 16, "lm-layers": 1, "lm-conv-layers": 1, "lm-kernels": "3"}},
    **{"train": {"decoder-ffn-embed-dim": 16, "decoder-attention-heads": 2, "max-update": 10, "warmup-updates": 2}},
}
TASK = ["--task", "language_modeling", "--sample-break-mode", "eos", "--tokens-per-sample", "2048"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, checkpoints and results of each row, in folders of their names."""
    folder = tmp_path_factory.mktemp("language_models")
    text = embedded_corpus.generate(train=300, valid=10, test=20)
    embedded_corpus.write(folder / "text", text, ("en",))
    files = {role: folder / f"text/{role}.en" for role in text}
    given: dict[str, list[Any]] = {
        "words": ["embedded_lm", folder / "words", "--data", folder / "text"],
        "pieces": ["text", folder / "pieces", *(word for role in files for word in (f"--{role}", files[role]))],
    }
    given["pieces"] += ["--vocab-size", "200"]
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    for name, row in ROWS.items():
        commands.run("amlp_fairseq.corpora.prepare", *given[name], "--workers", "1")
        words = ["--row", row, "--scale", folder / "tiny.yaml", "--save-dir", folder / row, "--cpu"]
        commands.run("amlp_fairseq.training.train", folder / name / "data-bin", *words)
        commands.run("amlp_fairseq.evaluation.evaluate", folder / row, folder / name / "data-bin", "--cpu")
    return folder


def result(trained: Path, name: str) -> dict[str, Any]:
    (line,) = (trained / ROWS[name] / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return dict(json.loads(line))


@pytest.mark.parametrize("name", ROWS)
def test_perplexity_is_that_of_the_models_own_probabilities(name: str, trained: Path) -> None:
    """Sentence by sentence in float64: all words and the end of the sentence, after an end of a sentence."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained / ROWS[name] / "average.pt")])
    model.double().eval()
    bits, units = 0.0, 0
    for tokens in load_indexed_dataset(str(trained / name / "data-bin/test"), task.dictionary):
        target = tokens.long().unsqueeze(0)
        source = target.roll(1, 1)
        assert source[0, 0] == task.dictionary.eos()
        with torch.no_grad():
            output = model(source)
            lprobs = model.get_normalized_probs(output, log_probs=True, sample=None)[0].numpy()
        np.testing.assert_allclose(np.exp(lprobs).sum(-1), 1, rtol=1e-6)
        bits -= np.log2(np.exp(lprobs))[np.arange(len(tokens)), tokens.numpy()].sum()
        units += len(tokens)
    text = (trained / "text/test.en").read_text(encoding="utf-8").splitlines()
    words = sum(len(line.split()) + 1 for line in text)
    found = result(trained, name)
    assert {field: found[field] for field in ("sentences", "words", "tokens")} == {
        **{"sentences": 20, "words": words, "tokens": units},
    }
    assert (units > words) == (name == "pieces")
    assert found["perplexity"] == pytest.approx(2 ** (bits / words), rel=1e-3)
    assert found["perplexity"] > 1


def test_perplexity_is_that_of_stock_fairseq(trained: Path) -> None:
    """fairseq-eval-lm without the plugin on fairseq's own model; its two digits are rounded apart from ours."""
    words = [trained / "words/data-bin", *TASK, "--path", trained / "lm_self_attention/average.pt", "--cpu"]
    printed = commands.run("fairseq_cli.eval_lm", *words, "--gen-subset", "test")
    (stock,) = re.findall(r"Perplexity: ([\d.]+)", printed)
    assert result(trained, "words")["perplexity"] == pytest.approx(float(stock), abs=0.011)


def test_what_is_kept_of_a_result(trained: Path) -> None:
    found = result(trained, "pieces")
    facts: dict[str, Any] = {
        "data": "pieces",
        "scale": "tiny",
        "system": "lm_dynamicconv",
        "split": "test",
        "subset": "test",
    }
    facts |= {"decoding": "sentences", "distilled": False, "average": {"best": 1}, "updates": 10, "unknown_tokens": 0}
    assert facts.items() <= found.items()
    assert "bleu" not in found


def test_sentences_that_the_model_cannot_read_are_an_error(trained: Path, tmp_path: Path) -> None:
    """fairseq-eval-lm leaves them out, and says nothing."""
    words = ["--results", tmp_path / "results.jsonl", "--model-overrides", "{'max_target_positions': 8}", "--cpu"]
    folders = [trained / "lm_self_attention", trained / "words/data-bin"]
    printed = commands.run("amlp_fairseq.evaluation.evaluate", *folders, *words, check=False)
    assert "it leaves out sentences that are longer than the model's --max-target-positions" in printed
    assert not (tmp_path / "results.jsonl").exists()


def test_a_language_model_is_not_packaged(trained: Path, tmp_path: Path) -> None:
    words = ["package", trained / "lm_self_attention/average.pt", "--out", tmp_path / "model"]
    printed = commands.run("amlp_fairseq.cli.main", *words, check=False)
    assert printed.splitlines()[-1].endswith(
        "is of --task language_modeling: only models that translate can be packaged"
    )
    assert not (tmp_path / "model").exists()
