"""Every system on the embedded corpus through the command line: train, average, generate, score."""

from __future__ import annotations

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


def options(system: str) -> tuple[list[str], list[str]]:
    """The task and the model that the recipes give to a system."""
    program = f"source {commands.ROOT}/scripts/lib.sh; system_task {system}; system_model {system} 3,7"
    task, model = subprocess.check_output(["bash", "-c", program], text=True).splitlines()
    return task.split(), model.split()


def test_every_system_of_the_recipes_is_tested() -> None:
    program = f"source {commands.ROOT}/scripts/lib.sh; echo $systems"
    systems = subprocess.check_output(["bash", "-c", program], text=True).split()
    assert set(systems) == {"transformer", *SYSTEMS}


@pytest.mark.parametrize("system", SYSTEMS)
def test_train_average_generate_score(system: str, corpus: Path, tmp_path: Path) -> None:
    updates, words_per_step, least_bleu = SYSTEMS[system]
    task, model = options(system)
    plugin: list[Any] = ["--user-dir", commands.PLUGIN]
    if words_per_step is None:
        plugin += ["--required-batch-size-multiple", "1"]  # stock drops the rest of the last batch
    commands.run(
        *("fairseq_cli.train", corpus / "data-bin", *plugin, *task, *model, *SIZE),
        *(*commands.TRAINING, "--lr", "0.004", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "150"),
        *("--max-tokens", "2500", "--max-update", updates, "--save-dir", tmp_path, "--keep-interval-updates", "3"),
        *("--save-interval-updates", "20", "--no-epoch-checkpoints", "--share-all-embeddings"),
        *("--validate-interval-updates", updates, "--disable-validation"),
    )
    last = sorted(tmp_path.glob("checkpoint_*_*.pt"))
    assert len(last) == 3
    average = tmp_path / "average.pt"
    commands.run("amlp_fairseq.average_checkpoints", "--inputs", *last, "--output", average)

    task = task[:2]  # the pattern comes from the checkpoint
    if words_per_step is not None:
        task.append("--print-step")
    output = commands.run(
        *("fairseq_cli.generate", corpus / "data-bin", *plugin, *task, "--path", average, "--beam", "4"),
        *("--max-tokens", "4000", "--cpu"),
    )
    references = (corpus / "raw/test.de").read_text(encoding="utf-8").splitlines()
    found = {prefix: commands.lines(output, prefix) for prefix in ("STHDPI" if words_per_step else "STHDP")}
    for prefix, by_sentence in found.items():
        assert by_sentence.keys() == set(range(len(references))), prefix
    assert [found["T"][i][0] for i in range(len(references))] == references
    hypotheses = [found["D"][i][1] for i in range(len(references))]
    for i, hypothesis in enumerate(hypotheses):
        n = len(hypothesis.split())
        assert len(found["P"][i][0].split()) == n + 1
        if words_per_step:
            assert int(found["I"][i][0]) == -(-(n + 1) // words_per_step) <= n / words_per_step + 1
    bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert bleu >= least_bleu, system
