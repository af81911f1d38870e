"""scripts/distill.sh: the teacher's translations become the training targets, sentence by sentence."""

from __future__ import annotations

import random
from pathlib import Path

import commands
import pytest

WORDS = [f"w{i}" for i in range(9)]
SCRIPT = commands.ROOT / "scripts/distill.sh"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a binarised corpus of random sentences and a Transformer that has begun to learn to copy them."""
    folder = tmp_path_factory.mktemp("distill")
    rng = random.Random(1)
    (folder / "raw").mkdir()
    for split, count in {"train": 60, "valid": 5, "test": 5}.items():
        rows = [" ".join(rng.choices(WORDS, k=rng.randint(1, 5))) for _ in range(count)]
        for language in ("src", "tgt"):
            (folder / f"raw/{split}.{language}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    commands.preprocess(folder / "raw", folder / "data", "src", "tgt")
    commands.run(
        *("fairseq_cli.train", folder / "data", "--user-dir", commands.PLUGIN, *commands.TRAINING, "--lr", "0.005"),
        *("--arch", "transformer_tiny", "--max-tokens", "200", "--max-update", "90", "--no-epoch-checkpoints"),
        *("--save-dir", folder, "--required-batch-size-multiple", "1"),
    )
    return folder


def test_targets_are_the_teachers_translations(teacher: Path, tmp_path: Path) -> None:
    data, out, model = teacher / "data", tmp_path / "out", teacher / "checkpoint_last.pt"
    options = ["--cpu", "--max-len-b", "12"]
    commands.fresh("bash", SCRIPT, model, data, out, *options)
    unchanged = {path.name for path in data.iterdir()} - {
        "preprocess.log",
        "train.src-tgt.tgt.bin",
        "train.src-tgt.tgt.idx",
    }
    assert len(unchanged) == 12
    for name in unchanged:
        assert (out / name).read_bytes() == (data / name).read_bytes(), name
    decoding = ["--user-dir", commands.PLUGIN, "--gen-subset", "train", "--path", model, "--beam", "5", *options]
    expected = commands.run("fairseq_cli.generate", data, *decoding, "--required-batch-size-multiple", "1")
    seen = commands.run("fairseq_cli.generate", out, *decoding, "--required-batch-size-multiple", "1")
    hypotheses = {i: "".join(words) for i, (_, *words) in commands.lines(expected, "H").items()}
    targets = {i: "".join(words) for i, words in commands.lines(seen, "T").items()}
    assert targets == hypotheses
    assert targets.keys() == set(range(60))
    assert len(set(targets.values())) > 5
    assert commands.lines(seen, "S") == commands.lines(expected, "S")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("checkpoint_last.pt data", "three arguments are needed"),
        ("nothing.pt data new", "TEACHER nothing.pt does not exist"),
        ("checkpoint_last.pt raw new", "DATA raw has no training data"),
        ("checkpoint_last.pt data raw", "OUT raw exists"),
    ],
)
def test_bad_arguments_are_named(teacher: Path, words: str, message: str) -> None:
    result = commands.fresh("bash", SCRIPT, *words.split(), check=False, cwd=teacher)
    assert result.returncode == 2
    assert message in result.stdout
    assert not (teacher / "new").exists()


def test_a_teacher_that_fails_leaves_nothing(teacher: Path, tmp_path: Path) -> None:
    result = commands.fresh(
        *("bash", SCRIPT, teacher / "checkpoint_last.pt", teacher / "data", tmp_path / "out", "--task", "nonsense"),
        check=False,
    )
    assert result.returncode != 0
    assert "nonsense" in result.stdout
    assert not (tmp_path / "out").exists()


def test_missing_sentences_are_named() -> None:
    hypotheses = commands.load_script("restore_order").hypotheses
    generated = "H-2\t-0.1\tc d\nH-0\t-0.2\ta\nH-1\t-0.3\t\n"
    assert hypotheses(generated, 3) == ["a", "", "c d"]
    with pytest.raises(ValueError, match=r"3 hypotheses for 5 sentences; odd sentences: \[3, 4\]"):
        hypotheses(generated, 5)
