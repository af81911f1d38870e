"""scripts/reproduce.sh: which experiments it runs, on which data, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import commands
import pytest

reproduce = commands.load_script("reproduce")


class Recorded(reproduce.Reproduction):  # type: ignore[misc, name-defined]
    """Its scripts leave what the real ones would, and a note of what they were called with."""

    def __init__(self, dataset: str, folder: Path) -> None:
        super().__init__(
            dataset, folder, folder / "results.jsonl", ["--data", "text"], ["--cpu"], ["--batch-size", "50"]
        )
        self.calls: list[list[str]] = []

    def script(self, name: str, *words: object) -> None:
        words = tuple(str(word).replace(f"{self.work}/", "").replace(f"{self.configs}/", "") for word in words)
        self.calls.append([name.split()[0], *words])  # type: ignore[list-item]
        if name.startswith("prepare"):
            (self.work / "data/data-bin").mkdir(parents=True)
        elif name.startswith("distill"):
            (self.work / "distilled").mkdir()
        elif name.startswith("train"):
            folder = self.work / str(words[3])
            folder.mkdir(exist_ok=True)
            (folder / "average.pt").touch()


@pytest.mark.parametrize(
    ("table", "some", "count"),
    [
        ("ibdecoder", {"transformer", "ibdecoder", "imdecoder", "vanilla_sa_4", "ibdecoder_sa_student"}, 15),
        ("sat", {"vanilla_sa_2", "vanilla_sa_4", "vanilla_sa_6"}, 3),
        ("aan", {"transformer", "aan", "aan_no_ffn", "aan_no_gate"}, 4),
        ("dynamicconv", {"self_attention", "cnn", "dynamicconv_abs_l2", "aan_encoder_decoder"}, 22),
        ("amlp", {"amlp_transformer", "cmlmc", "cmlmc_amlp", "cmlm"}, 12),
    ],
)
@pytest.mark.parametrize("dataset", reproduce.DATASETS)
def test_rows_of_a_table(dataset: str, table: str, some: set[str], count: int, tmp_path: Path) -> None:
    rows = Recorded(dataset, tmp_path).rows(table)
    assert some <= set(rows)
    assert len(rows) == count


def test_distilled_data_come_from_the_transformer(tmp_path: Path) -> None:
    reproduction = Recorded("multi30k_base", tmp_path)
    reproduction.run(reproduce.Experiment("ibdecoder", distilled=True, seed=2))
    assert reproduction.calls == [
        ["prepare_multi30k.sh", "data", "--vocab-size", "8000", "--data", "text"],
        ["train.sh", "transformer.yaml", "data/data-bin", "--save-dir", "transformer-1", "--seed", "1", "--cpu"],
        [
            *("evaluate.sh", "transformer.yaml", "transformer-1", "data/data-bin", "--results", "results.jsonl"),
            *("--cpu", "--batch-size", "50"),
        ],
        ["distill.sh", "transformer-1/average.pt", "data/data-bin", "distilled", "--cpu"],
        [
            *("train.sh", "ibdecoder.yaml", "distilled", "--save-dir", "ibdecoder-distilled-2", "--seed", "2"),
            "--cpu",
        ],
        [
            *("evaluate.sh", "ibdecoder.yaml", "ibdecoder-distilled-2", "distilled", "--results", "results.jsonl"),
            *("--cpu", "--batch-size", "50"),
        ],
    ]


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    reproduction = Recorded("embedded", tmp_path)
    reproduction.data(distilled=True)
    before = len(reproduction.calls)
    reproduction.data(distilled=True)
    assert len(reproduction.calls) == before
    facts = {"system": "ibdecoder", "seed": 1, "subset": "new", "split": "test", "decoding": "greedy"}
    lines = [
        *(facts | {"distilled": kind, "decoding": "beam 4"} for kind in (False, True)),
        facts | {"distilled": False},
        facts | {"distilled": True, "split": "valid"},
    ]
    reproduction.results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert reproduction.done() == {reproduce.Experiment("ibdecoder", False, 1)}


def test_a_script_that_fails_ends_it(tmp_path: Path) -> None:
    reproduction = reproduce.Reproduction("embedded", tmp_path, tmp_path / "results.jsonl", [], ["--cpu"], [])
    with pytest.raises(RuntimeError, match=r"train.sh nowhere.yaml .*status 2, see .*logs/x.log"):
        reproduction.script("train.sh x", "nowhere.yaml", tmp_path)
    assert "No such file" in (tmp_path / "logs/x.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "wmt", "--table", "aan"], "invalid choice: 'wmt'"),
        (["--dataset", "embedded", "--table", "7"], "invalid choice: '7'"),
        (["--dataset", "embedded", "--table", "aan", "--rows", "cnn"], "--rows cnn: choose from aan aan_no_ffn"),
    ],
)
def test_wrong_arguments(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["reproduce", *words])
    with pytest.raises(SystemExit):
        reproduce.main()
    assert message in capsys.readouterr().err
