"""Every system on the embedded corpus through the command line: train, average, generate, score."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import sacrebleu

INTERLEAVED = ["--task", "translation_interleaved", "--num-directions"]
STOCK_TASK = ["--task", "translation", "--required-batch-size-multiple", "1"]
WIDTHS = ["--decoder-kernel-size-list", "[3,7]"]
SYSTEMS: dict[str, tuple[list[str], list[str], int, float]] = {  # task, model, words per step, least BLEU
    "ar": ([*INTERLEAVED, "1"], ["ibdecoder"], 1, 75.0),
    "ibdecoder": ([*INTERLEAVED, "2"], ["ibdecoder"], 2, 60.0),
    "sat": ([*INTERLEAVED, "1", "--words-per-direction", "2"], ["ibdecoder"], 2, 58.0),
    "ibdecoder-sa": ([*INTERLEAVED, "2", "--words-per-direction", "2"], ["ibdecoder"], 4, 38.0),
    "imdecoder": ([*INTERLEAVED, "4"], ["ibdecoder"], 4, 38.0),
    "ibdecoder-dynamicconv": (
        [*INTERLEAVED, "2"],
        ["ibdecoder", "--decoder-self-attention-type", "dynamic_conv", *WIDTHS],
        2,
        58.0,
    ),
    "triton_lightconv": (
        STOCK_TASK,
        ["triton_lightconv", "--encoder-kernel-size-list", "[3,7]", *WIDTHS],
        1,
        75.0,
    ),
    "triton_dynamicconv": (
        STOCK_TASK,
        ["triton_dynamicconv", "--encoder-kernel-size-list", "[3,7]", *WIDTHS],
        1,
        75.0,
    ),
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
    task, model, words_per_step, least_bleu = SYSTEMS[system]
    plugin: list[Any] = ["--user-dir", commands.PLUGIN]
    commands.run(
        *("fairseq_cli.train", corpus / "data-bin", *plugin, *task, "--arch", *model, *SIZE),
        *(*commands.TRAINING, "--lr", "0.004", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "150"),
        *("--max-tokens", "2500", "--max-update", "460", "--save-dir", tmp_path, "--keep-interval-updates", "3"),
        *("--save-interval-updates", "20", "--no-epoch-checkpoints", "--share-all-embeddings"),
        *("--validate-interval-updates", "460", "--disable-validation"),
    )
    last = sorted(tmp_path.glob("checkpoint_*_*.pt"))
    assert len(last) == 3
    average = tmp_path / "average.pt"
    commands.run("amlp_fairseq.average_checkpoints", "--inputs", *last, "--output", average)

    interleaved = task is not STOCK_TASK
    if interleaved:
        task = [*task[:2], "--print-step"]  # the pattern comes from the checkpoint
    output = commands.run(
        *("fairseq_cli.generate", corpus / "data-bin", *plugin, *task, "--path", average, "--beam", "4"),
        *("--max-tokens", "4000", "--cpu"),
    )
    references = (corpus / "raw/test.de").read_text(encoding="utf-8").splitlines()
    found = {prefix: commands.lines(output, prefix) for prefix in ("STHDPI" if interleaved else "STHDP")}
    for prefix, by_sentence in found.items():
        assert by_sentence.keys() == set(range(len(references))), prefix
    assert [found["T"][i][0] for i in range(len(references))] == references
    hypotheses = [found["D"][i][1] for i in range(len(references))]
    for i, hypothesis in enumerate(hypotheses):
        n = len(hypothesis.split())
        assert len(found["P"][i][0].split()) == n + 1
        if interleaved:
            assert int(found["I"][i][0]) == -(-(n + 1) // words_per_step) <= n / words_per_step + 1
    bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert bleu >= least_bleu, system
