"""Every system on the embedded corpus through the command line: train, average, generate, score."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import sacrebleu

SYSTEMS = {  # h, c, least BLEU
    "ar": (1, 1, 75.0),
    "ibdecoder": (2, 1, 60.0),
    "sat": (1, 2, 58.0),
    "ibdecoder-sa": (2, 2, 38.0),
    "imdecoder": (4, 1, 38.0),
}
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


@pytest.mark.parametrize("system", SYSTEMS)
def test_train_average_generate_score(system: str, corpus: Path, tmp_path: Path) -> None:
    h, c, least_bleu = SYSTEMS[system]
    plugin: list[Any] = ["--user-dir", commands.PLUGIN, "--task", "translation_interleaved"]
    pattern = ["--num-directions", h, "--words-per-direction", c]
    commands.run(
        *("fairseq_cli.train", corpus / "data-bin", *plugin, *pattern, "--arch", "ibdecoder", *SIZE),
        *(*commands.TRAINING, "--lr", "0.004", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "150"),
        *("--max-tokens", "2500", "--max-update", "460", "--save-dir", tmp_path, "--keep-interval-updates", "3"),
        *("--save-interval-updates", "20", "--no-epoch-checkpoints", "--share-all-embeddings"),
        *("--validate-interval-updates", "460", "--disable-validation"),
    )
    last = sorted(tmp_path.glob("checkpoint_*_*.pt"))
    assert len(last) == 3
    average = tmp_path / "average.pt"
    commands.run("amlp_fairseq.average_checkpoints", "--inputs", *last, "--output", average)

    # The pattern comes from the checkpoint.
    output = commands.run(
        *("fairseq_cli.generate", corpus / "data-bin", *plugin, "--path", average, "--beam", "4", "--print-step"),
        *("--max-tokens", "4000", "--cpu"),
    )
    references = (corpus / "raw/test.de").read_text(encoding="utf-8").splitlines()
    found = {prefix: commands.lines(output, prefix) for prefix in "STHDPI"}
    for prefix, by_sentence in found.items():
        assert by_sentence.keys() == set(range(len(references))), prefix
    assert [found["T"][i][0] for i in range(len(references))] == references
    hypotheses = [found["D"][i][1] for i in range(len(references))]
    for i, hypothesis in enumerate(hypotheses):
        n = len(hypothesis.split())
        assert len(found["P"][i][0].split()) == n + 1
        assert int(found["I"][i][0]) == -(-(n + 1) // (h * c)) <= n / (h * c) + 1
    bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert bleu >= least_bleu, system
