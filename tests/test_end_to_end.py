"""Every system on the embedded corpus through the command line: train, average, generate, score."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import sacrebleu

#: Systems of scripts/lib.sh: updates, words per decoder call (None for fairseq's own search), least BLEU.
SYSTEMS = {
    "ar": (460, 1, 75.0),
    "ibdecoder": (460, 2, 60.0),
    "sat": (460, 2, 58.0),
    "ibdecoder-sa": (460, 4, 38.0),
    "imdecoder": (460, 4, 38.0),
    "triton_lightconv": (320, None, 70.0),
    "triton_dynamicconv": (320, None, 70.0),
    "ibdecoder-dynamicconv": (320, 2, 50.0),
    "aan_transformer": (320, None, 60.0),
    "ibdecoder-aan": (320, 2, 40.0),
}
#: Non-autoregressive systems: least BLEU after 1000 updates of 1200 tokens, 10 iterations.
NON_AUTOREGRESSIVE = {"cmlmc": 30.0}
#: Least BLEU of what takes longer, in the results that scripts/embedded.sh left.
BY_RECIPE = {
    "transformer": 80.0,
    "transformer-abc": 70.0,
    "transformer-local": 60.0,
    "cmlm": 55.0,
    "cmlmc": 55.0,
    "cmlmc-amlp": 40.0,
    "cmlmc-amlp-cov": 40.0,
    "cmlmc-abc": 40.0,
    "cmlmc-local": 40.0,
}
#: Of these, what was also trained on the transformer's translations.
DISTILLED = ["cmlmc", "cmlmc-amlp"]
SIZE = [
    word
    for side in ("encoder", "decoder")
    for option, value in {"embed-dim": 128, "ffn-embed-dim": 256, "layers": 2, "attention-heads": 4}.items()
    for word in (f"--{side}-{option}", str(value))
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded corpus, binarised."""
    folder = tmp_path_factory.getbasetemp() / "embedded-corpus"
    generator = commands.ROOT / "examples/embedded_corpus/generate.py"
    subprocess.run([sys.executable, str(generator), str(folder / "raw")], check=True)
    commands.preprocess(folder / "raw", folder / "data-bin")
    return folder


def options(system: str, updates: int) -> tuple[list[str], list[str], list[str]]:
    """The task, the model with its loss, and the first search that the recipes give to a system."""
    words = f"system_task {system}; system_model {system} 3,7 {updates}; system_criterion {system}"
    program = f"source {commands.ROOT}/scripts/lib.sh; {words}; system_searches {system}"
    task, model, criterion, search, *_ = subprocess.check_output(["bash", "-c", program], text=True).splitlines()
    return task.split(), f"{model} {criterion}".split(), search.split(": ")[1].split()


def train(corpus: Path, folder: Path, updates: int, *options: Any) -> Path:
    """The average of a training's last three checkpoints, 20 updates apart."""
    commands.run(
        *("fairseq_cli.train", corpus / "data-bin", "--user-dir", commands.PLUGIN, *SIZE, *commands.TRAINING),
        *("--lr", "0.004", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "150", "--max-update", updates),
        *("--required-batch-size-multiple", "1", "--save-interval-updates", "20", "--keep-interval-updates", "3"),
        *("--no-epoch-checkpoints", "--share-all-embeddings", "--disable-validation", "--save-dir", folder, *options),
    )
    last = sorted(folder.glob("checkpoint_*_*.pt"))
    assert len(last) == 3
    average = folder / "average.pt"
    commands.run("amlp_fairseq.average_checkpoints", "--inputs", *last, "--output", average)
    return average


def generate(corpus: Path, checkpoint: Path, *options: Any) -> tuple[dict[str, dict[int, list[str]]], list[str], float]:
    """Lines of fairseq-generate by prefix and sentence, hypotheses of the test set in order, and their BLEU; every
    sentence is there."""
    output = commands.run(
        *("fairseq_cli.generate", corpus / "data-bin", "--user-dir", commands.PLUGIN, "--path", checkpoint),
        *("--required-batch-size-multiple", "1", "--max-tokens", "4000", "--cpu", *options),
    )
    references = (corpus / "raw/test.de").read_text(encoding="utf-8").splitlines()
    found = {prefix: commands.lines(output, prefix) for prefix in "STHDPI"}
    for prefix in "STHDP":
        assert found[prefix].keys() == set(range(len(references))), prefix
    assert [found["T"][i][0] for i in range(len(references))] == references
    hypotheses = [found["D"][i][1] for i in range(len(references))]
    return found, hypotheses, sacrebleu.corpus_bleu(hypotheses, [references]).score


def test_every_system_of_the_recipes_is_tested() -> None:
    program = f"source {commands.ROOT}/scripts/lib.sh; echo $systems"
    systems = subprocess.check_output(["bash", "-c", program], text=True).split()
    assert set(systems) == {*SYSTEMS, *NON_AUTOREGRESSIVE, *BY_RECIPE}


@pytest.mark.parametrize("system", SYSTEMS)
def test_train_average_generate_score(system: str, corpus: Path, tmp_path: Path) -> None:
    updates, words_per_step, least_bleu = SYSTEMS[system]
    task, model, _ = options(system, updates)
    average = train(corpus, tmp_path, updates, *task, *model, "--max-tokens", "2500")
    task = task[:2]  # the pattern comes from the checkpoint
    if words_per_step is not None:
        task.append("--print-step")
    found, hypotheses, bleu = generate(corpus, average, *task, "--beam", "4")
    for i, hypothesis in enumerate(hypotheses):
        n = len(hypothesis.split())
        assert len(found["P"][i][0].split()) == n + 1
        if words_per_step:
            assert int(found["I"][i][0]) == -(-(n + 1) // words_per_step) <= n / words_per_step + 1
    assert bleu >= least_bleu, system


@pytest.mark.parametrize("system", NON_AUTOREGRESSIVE)
def test_non_autoregressive(system: str, corpus: Path, tmp_path: Path) -> None:
    updates = 1000
    task, model, search = options(system, updates)
    average = train(corpus, tmp_path, updates, *task, *model, "--max-tokens", "1200", "--warmup-updates", "300")
    found, hypotheses, bleu = generate(corpus, average, *task, *search)
    for i, hypothesis in enumerate(hypotheses):
        assert len(found["P"][i][0].split()) == len(hypothesis.split()) + 1
        assert 1 <= int(found["I"][i][0]) <= 10
    assert bleu >= NON_AUTOREGRESSIVE[system]
    _, _, in_one_call = generate(corpus, average, *task, "--iter-decode-max-iter", "0", "--iter-decode-with-beam", "3")
    assert in_one_call < bleu  # refinement refines


def test_results_of_the_embedded_corpus() -> None:
    """scripts/embedded.sh: every system is there and good enough, and distillation helps what sees no words."""
    lines = (commands.ROOT / "docs/results/embedded.jsonl").read_text(encoding="utf-8").splitlines()
    bleu = {(row["system"], row["decoding"]): row["bleu"] for row in map(json.loads, lines)}
    for system, least in BY_RECIPE.items():
        assert bleu[system, "10 iterations" if system.startswith("cmlm") else "beam 4"] >= least
    for system in DISTILLED:
        for decoding in ("10 iterations", "1 iteration"):
            assert bleu[f"{system} (distilled)", decoding] > bleu[system, decoding] + 1
