"""Summaries end to end: a Transformer and IBDecoder at a tiny size, trigrams blocked in both, ROUGE in the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import commands
import pytest
import tolerance
import yaml
from rouge_score.rouge_scorer import RougeScorer

from amlp_fairseq.corpora import embedded_corpus, embedded_summaries

pytestmark = pytest.mark.xdist_group("summarisation")  # one process trains the models

TASKS = {"transformer": "translation", "ibdecoder": "translation_interleaved"}
TINY = {
    f"{side}-{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"embed-dim": 32, "ffn-embed-dim": 32, "layers": 1, "attention-heads": 2}.items()
}
LONGEST = 40


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of amlp-fairseq prepare and a folder of checkpoints for each row."""
    folder = tmp_path_factory.mktemp("summarisation")
    text = embedded_summaries.generate(train=300, valid=10, test=20)
    embedded_corpus.write(folder / "text", text, ("article", "summary"))
    words = ["embedded_summaries", folder / "out", "--data", folder / "text", "--workers", "1"]
    commands.run("amlp_fairseq.corpora.prepare", *words)
    scale = {"base": "embedded_summaries", "train": {**TINY, "max-update": 20, "warmup-updates": 4}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(scale), encoding="utf-8")
    for row in TASKS:
        words = ["--row", row, "--scale", folder / "tiny.yaml", "--save-dir", folder / row, "--cpu"]
        commands.run("amlp_fairseq.training.train", folder / "out/data-bin", *words, "--max-tokens", "1000")
    return folder


def repeats(words: list[str]) -> bool:
    """Whether a trigram is there twice."""
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(trigrams)) < len(trigrams)


@pytest.mark.parametrize("row", TASKS)
def test_no_trigram_twice(row: str, trained: Path) -> None:
    """By fairseq's search and by the multi-word one; models that have learned next to nothing repeat themselves."""
    words = [trained / "out/data-bin", "--user-dir", commands.PLUGIN, "--task", TASKS[row], "--cpu", "--beam", "4"]
    words += ["--path", trained / row / "checkpoint_last.pt", "--min-len", "12", "--max-len-b", LONGEST]
    words += ["--required-batch-size-multiple", "1"]
    for blocked in (False, True):
        blocking = ["--no-repeat-ngram-size", "3"] if blocked else []
        printed = commands.run("fairseq_cli.generate", *words, *blocking)
        found = [fields[1].split() for fields in commands.lines(printed, "H").values()]
        assert len(found) == 20
        assert min(map(len, found)) >= 12
        # What has reached the longest length may repeat a trigram where two directions meet, but not in either of them.
        whole = [text for text in found if len(text) < LONGEST or row == "transformer"]
        halves = [part for text in found for part in (text[: LONGEST // 2], text[LONGEST // 2 :])]
        assert any(repeats(text) for text in [*whole, *halves]) == (not blocked)
        assert whole or not blocked


def test_results_have_rouge(trained: Path) -> None:
    """Of one sentence each, so that rouge-score's ROUGE-L of whole texts is the same. The longest output is tuned by
    it."""
    row = {"base": "transformer", "tune-max-len": [1, 5], "generate": {"beam 4": None}, "average": {"count": 1}}
    (trained / "tuned.yaml").write_text(yaml.safe_dump(row), encoding="utf-8")
    words = [trained / "transformer", trained / "out/data-bin", "--row", trained / "tuned.yaml", "--cpu"]
    words += ["--scale", trained / "tiny.yaml", "--batch-size", "10", "--results", trained / "results.jsonl"]
    printed = commands.run("amlp_fairseq.evaluation.evaluate", *words)
    tried = re.findall(r"^greedy, .*, max-len-b (\d+): (\S+) ROUGE-L on the validation set$", printed, re.MULTILINE)
    assert [length for length, _ in tried] == ["1", "5"]
    best, _ = max(tried, key=lambda each: float(each[1]))
    assert tried[0][1] != tried[1][1]
    (line,) = (trained / "results.jsonl").read_text(encoding="utf-8").splitlines()
    result = json.loads(line)
    assert result["options"] == f"--beam 1 --lenpen 0.6 --max-len-b {best} --batch-size 10 --cpu"
    references = (trained / "text/test.summary").read_text(encoding="utf-8").splitlines()
    hypotheses = (trained / "transformer/generated.test.greedy.hyp").read_text(encoding="utf-8").splitlines()
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(references, hypotheses, strict=True)]
    for field, kind in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")):
        assert result[field] == pytest.approx(
            100 * sum(score[kind].fmeasure for score in scores) / 20, abs=tolerance.printed(2)
        )
    assert result["rouge_1"] > 0
    assert (result["data"], result["sentences"], "bleu" in result) == ("embedded_summaries", 20, False)
