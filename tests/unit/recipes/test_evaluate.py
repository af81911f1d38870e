"""scripts/evaluate.sh: averages, tunes, decodes and scores as the same commands by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import commands
import pytest
import sacrebleu
import torch
import yaml

SCRIPT = commands.ROOT / "scripts/evaluate.sh"
WORDS = "Haus Baum See Weg Berg".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, its data as scripts/prepare_*.sh leave them, and the checkpoints of its training."""
    folder = tmp_path_factory.mktemp("evaluate")
    raw, data = folder / "data/raw", folder / "data"
    raw.mkdir(parents=True)
    for split, count in (("train", 60), ("valid", 12), ("test", 10)):
        rows = [[WORDS[(i * (j + 2) + j) % 5] for j in range(5 + i % 4)] for i in range(count)]
        (raw / f"{split}.en").write_text("".join(" ".join(row).lower() + "\n" for row in rows), encoding="utf-8")
        (raw / f"{split}.de").write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
    commands.preprocess(raw, data)
    text = {"languages": ["en", "de"], "post_process": None, "tokenizer": "moses", "valid_set": "v", "test_set": "toy"}
    (data / "text.json").write_text(json.dumps(text), encoding="utf-8")
    config = {
        "task": {"task": "translation_interleaved"},
        "train": {
            **{"arch": "ibdecoder_tiny", "criterion": "label_smoothed_cross_entropy", "optimizer": "adam", "lr": 0.005},
            **{"batch-size": 20, "max-epoch": 60, "share-all-embeddings": True, "seed": 3, "no-progress-bar": True},
            **{"required-batch-size-multiple": 1, "keep-last-epochs": 2, "disable-validation": True},
        },
        "average": {"last-epochs": 2},
        "generate": {"beam 2": {"beam": 2, "print-step": True}},
        "tune-lenpen": [-5.0, 1.0],
    }
    (folder / "row.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    words = ["--user-dir", commands.PLUGIN, "--cpu", "--save-dir", folder / "checkpoints"]
    words += commands.load_script("recipe").flags(config["task"] | config["train"], folder)
    commands.run("fairseq_cli.train", data, *words)
    return folder


def evaluate(folder: Path, *words: object, config: str = "row.yaml", check: bool = True) -> str:
    arguments = [folder / config, folder / "checkpoints", folder / "data", "--cpu"]
    return commands.fresh("bash", SCRIPT, *arguments, *words, check=check).stdout


def test_results_are_those_of_the_commands_by_hand(trained: Path, tmp_path: Path) -> None:
    printed = evaluate(trained, "--results", tmp_path / "results.jsonl")
    (line,) = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    result: dict[str, Any] = json.loads(line)

    states = [torch.load(trained / f"checkpoints/checkpoint{i}.pt", weights_only=True)["model"] for i in (59, 60)]
    average = torch.load(trained / "checkpoints/average.pt", weights_only=True)["model"]
    name = "decoder.layers.1.fc1.weight"
    torch.testing.assert_close(average[name], (states[0][name] + states[1][name]) / 2)

    tuned = dict(re.findall(r"lenpen (\S+): (\S+) BLEU on the validation set", printed))
    assert tuned.keys() == {"-5.0", "1.0"}
    assert float(tuned["1.0"]) > float(tuned["-5.0"]) + 1
    assert result["options"] == "--beam 2 --print-step --lenpen 1.0 --cpu"

    by_hand = commands.run(
        *(
            "fairseq_cli.generate",
            trained / "data",
            "--user-dir",
            commands.PLUGIN,
            "--cpu",
            "--beam",
            "2",
            "--lenpen",
            "1",
        ),
        *("--task", "translation_interleaved", "--path", trained / "checkpoints/average.pt", "--batch-size", "1"),
        *("--print-step", "--required-batch-size-multiple", "1"),
    )
    hypotheses = [fields[1] for _, fields in sorted(commands.lines(by_hand, "H").items())]
    references = (trained / "data/raw/test.de").read_text(encoding="utf-8").splitlines()
    stored = (trained / "checkpoints/generated.test.beam-2.hyp").read_text(encoding="utf-8")
    assert stored.splitlines() == hypotheses
    assert result["bleu"] == round(sacrebleu.corpus_bleu(hypotheses, [references]).score, 2)
    assert result["bleu"] > 5
    steps = [int(fields[0]) for fields in commands.lines(by_hand, "I").values()]
    assert result["steps_per_sentence"] == round(sum(steps) / len(steps), 2)
    assert result["milliseconds_per_sentence"] > 0
    facts = {"system": "row", "distilled": False, "subset": "toy", "decoding": "beam 2", "seed": 3, "updates": 180}
    assert (facts | {"split": "test", "average": {"last-epochs": 2}}).items() <= result.items()
    assert {"dataset", "parameters", "training_seconds", "chrf", "tokenised_bleu", "device", "commit"} <= result.keys()


def test_number_of_checkpoints_is_tuned_with_the_length_penalty(trained: Path, tmp_path: Path) -> None:
    config = {"base": "row.yaml", "average": {"tune": [1, 2]}, "tune-lenpen": [-5.0, 1.0]}
    (trained / "tuned.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    printed = evaluate(trained, "--results", tmp_path / "results.jsonl", config="tuned.yaml")
    tried = re.findall(r"^beam 2, last-epochs (\d), lenpen (\S+): (\S+) BLEU on the", printed, flags=re.MULTILINE)
    assert [each[:2] for each in tried] == [("2", "-5.0"), ("2", "1.0"), ("1", "-5.0"), ("1", "1.0")]
    count, penalty, _ = max(tried, key=lambda each: float(each[2]))
    (line,) = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    result = json.loads(line)
    assert result["average"] == {"last-epochs": int(count)}
    assert result["options"] == f"--beam 2 --print-step --lenpen {penalty} --cpu"
    names = [f"checkpoints/{name}.pt" for name in ("average", *("checkpoint59", "checkpoint60")[-int(count) :])]
    average, *states = [torch.load(trained / name, weights_only=True)["model"] for name in names]
    weight = "decoder.layers.1.fc1.weight"
    torch.testing.assert_close(average[weight], torch.stack([state[weight] for state in states]).mean(0))


def test_checkpoints_that_are_missing_are_named(trained: Path, tmp_path: Path) -> None:
    config = {"base": "row.yaml", "average": {"tune": [1, 3]}}
    (trained / "missing.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    printed = evaluate(trained, "--results", tmp_path / "none.jsonl", config="missing.yaml", check=False)
    assert "--last-epochs 3:" in printed
    assert "has 2 such checkpoint(s)" in printed
    assert "evaluate: amlp-average-checkpoints: status 2" in printed
    assert "BLEU on the validation set" not in printed
    assert not (tmp_path / "none.jsonl").exists()


def test_validation_set_and_distilled_data(trained: Path, tmp_path: Path) -> None:
    (trained / "data/manifest.json").write_text("{}", encoding="utf-8")
    config = yaml.safe_load((trained / "row.yaml").read_text(encoding="utf-8")) | {"tune-lenpen": None}
    (trained / "row.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    evaluate(trained, "--results", tmp_path / "results.jsonl", "--subset", "valid", "--batch-size", "4")
    result = json.loads((tmp_path / "results.jsonl").read_text(encoding="utf-8"))
    assert (result["distilled"], result["split"], result["subset"], result["sentences"]) == (True, "valid", "v", 12)
    assert result["options"] == "--beam 2 --print-step --cpu --batch-size 4"
    assert "milliseconds_per_sentence" not in result


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("data/text.json", "has no text.json, which scripts/prepare_*.sh write"),
        ("checkpoints", "CHECKPOINTS checkpoints: there is no such folder"),
        ("row.yaml", "No such file or directory: .*row.yaml"),
    ],
)
def test_what_is_missing_is_named(missing: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "data/text.json").write_text("{}")
    (tmp_path / "row.yaml").write_text("average: {best: 1}")
    (tmp_path / missing).rename(tmp_path / "away")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["evaluate", "row.yaml", "checkpoints", "data"])
    with pytest.raises(SystemExit, match=message.replace("*", r"\*").replace(r".\*", ".*")):
        commands.load_script("evaluate").main()
