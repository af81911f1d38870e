"""amlp-fairseq evaluate: averages, tunes, decodes and scores as the same commands by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import sacrebleu
import torch
import yaml
from filelock import FileLock

from amlp_fairseq.evaluation import evaluate as module
from amlp_fairseq.training.config import read, save
from amlp_fairseq.training.results import append_results, data_sha256, read_results

pytestmark = pytest.mark.xdist_group("evaluate")  # one process trains the model

WORDS = "Haus Baum See Weg Berg".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, its data as amlp-fairseq prepare leaves them, and the checkpoints of its training."""
    folder = tmp_path_factory.mktemp("evaluate")
    raw, data = folder / "data/raw", folder / "data"
    raw.mkdir(parents=True)
    for split, count in (("train", 60), ("valid", 12), ("test", 10)):
        rows = [[WORDS[(i * (j + 2) + j) % 5] for j in range(5 + i % 4)] for i in range(count)]
        (raw / f"{split}.en").write_text("".join(" ".join(row).lower() + "\n" for row in rows), encoding="utf-8")
        (raw / f"{split}.de").write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
    commands.preprocess(raw, data)
    text: dict[str, Any] = {"languages": ["en", "de"]}
    text |= {
        "name": "words",
        "corpus": "",
        "post_process": None,
        "tokenizer": "moses",
        "valid_set": "v",
        "test_set": "toy",
    }
    (data / "text.json").write_text(json.dumps(text), encoding="utf-8")
    content = {
        "task": {"task": "translation_interleaved"},
        "train": {
            **{"arch": "ibdecoder_tiny", "criterion": "label_smoothed_cross_entropy", "optimizer": "adam", "lr": 0.005},
            **{"batch-size": 20, "max-epoch": 60, "share-all-embeddings": True, "seed": 3, "no-progress-bar": True},
            **{"required-batch-size-multiple": 1, "keep-last-epochs": 2, "disable-validation": True},
        },
        "average": {"checkpoints": "last-epochs", "count": 2},
        "generate": {"beam 2": {"beam": 2, "print-step": True}},
        "tune-lenpen": [-5.0, 1.0],
    }
    (folder / "row.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (folder / "tiny.yaml").write_text("{}", encoding="utf-8")
    words = ["--row", folder / "row.yaml", "--scale", folder / "tiny.yaml", "--save-dir", folder / "checkpoints"]
    commands.run("amlp_fairseq.training.train", data, *words, "--cpu")
    return folder


def evaluate(folder: Path, *words: object, config: str = "", check: bool = True) -> str:
    """What the command prints; of another configuration than the training's where one is named."""
    named = ["--row", folder / config, "--scale", folder / "tiny.yaml"] if config else []
    arguments = [folder / "checkpoints", folder / "data", *named, "--cpu"]
    return commands.run("amlp_fairseq.evaluation.evaluate", *arguments, *words, check=check)


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
    commands.run("amlp_fairseq.cli.main", "package", trained / "checkpoints", "--out", tmp_path / "model")
    assert json.loads((tmp_path / "model/config.json").read_text(encoding="utf-8"))["decoding"]["lenpen"] == 1.0

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
    assert (result["data"], result["scale"]) == ("words", "tiny")
    assert result["data_sha256"] == data_sha256(trained / "data", "test")
    assert {"parameters", "training_seconds", "chrf", "tokenised_bleu", "device", "commit"} <= result.keys()


def test_number_of_checkpoints_is_tuned_with_the_length_penalty(trained: Path, tmp_path: Path) -> None:
    config = {"base": "row", "average": {"count": [1, 2]}}
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


def test_only_beam_searches_whose_length_penalty_is_not_given_are_tuned(trained: Path, tmp_path: Path) -> None:
    config = {"base": "row", "generate": {"greedy": {"beam": 1}}}
    (trained / "greedy.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    words = ("--results", tmp_path / "results.jsonl", "--batch-size", "5")
    tried = re.findall(
        r"^(.*), last-epochs 2, lenpen .* on the valid", evaluate(trained, *words, config="greedy.yaml"), re.M
    )
    assert tried == ["beam 2", "beam 2"]
    assert "on the validation set" not in evaluate(trained, *words, "--lenpen", "0.5", config="greedy.yaml")
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["options"].split(" --batch-size")[0] for line in lines] == [
        *("--beam 2 --print-step --lenpen 1.0", "--beam 1", "--beam 2 --print-step", "--beam 1")
    ]
    given = [json.loads(line)["decoding"].partition(", ")[2] for line in lines]
    assert given == ["", "", "--lenpen 0.5", "--lenpen 0.5"]


def test_another_model_chooses(trained: Path, tmp_path: Path) -> None:
    """In the ways of decoding that are for it, with a length penalty of their own; without any it is an error."""
    words = ("--rescore-path", tmp_path / "average.pt", "--results", tmp_path / "results.jsonl")
    assert "--rescore-path: the configuration of row has no section rescored" in evaluate(trained, *words, check=False)

    data, options = trained / "data", ("--arch", "transformer_tiny", "--share-all-embeddings", "--max-update", "1")
    train = ("--optimizer", "adam", "--batch-size", "20", "--disable-validation", "--save-dir", tmp_path, "--cpu")
    commands.run("fairseq_cli.train", data, *options, *train)
    (tmp_path / "checkpoint_last.pt").rename(tmp_path / "average.pt")
    config = {"base": "row", "rescored": {"beam 3, rescored": {"beam": 3}}}
    (trained / "chosen.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    printed = evaluate(trained, *words, config="chosen.yaml")
    tuned = dict(re.findall(r"^beam 3, rescored, .*lenpen (\S+): (\S+) BLEU on the valid", printed, re.MULTILINE))
    assert tuned.keys() == {"-5.0", "1.0"}
    best = max(tuned, key=lambda penalty: float(tuned[penalty]))
    result = json.loads((tmp_path / "results.jsonl").read_text(encoding="utf-8"))
    assert result["decoding"] == "beam 3, rescored"
    assert result["options"] == f"--beam 3 --lenpen {best} --rescore-path {tmp_path / 'average.pt'} --cpu"
    by_hand = commands.run(
        *("fairseq_cli.generate", data, "--user-dir", commands.PLUGIN, "--task", "translation_interleaved", "--cpu"),
        *("--path", trained / "checkpoints/average.pt", "--beam", "3", "--lenpen", best, *words[:2]),
        *("--batch-size", "1", "--required-batch-size-multiple", "1"),
    )
    stored = (trained / "checkpoints/generated.test.beam-3.rescored.hyp").read_text(encoding="utf-8")
    assert stored.splitlines() == [fields[1] for _, fields in sorted(commands.lines(by_hand, "H").items())]


def test_one_search_decodes_all_systems(trained: Path, tmp_path: Path) -> None:
    """A Transformer of fairseq gets its words, scores and calls from the plugin's search; fairseq's own, which is asked
    for, and fairseq-generate without the plugin say the same."""
    row = {
        **{"base": "row", "task": {"task": "translation"}, "train": {"arch": "transformer_tiny", "max-epoch": 40}},
        **{"generate": {"beam 2": {"beam": 3, "lenpen": 0.3, "print-step": None}, "greedy": {"beam": 1}}},
        "tune-lenpen": None,
    }
    (trained / "stock.yaml").write_text(yaml.safe_dump(row), encoding="utf-8")
    data, folder, found = trained / "data", tmp_path / "stock", tmp_path / "results.jsonl"
    named = ["--row", trained / "stock.yaml", "--scale", trained / "tiny.yaml", "--cpu"]
    commands.run("amlp_fairseq.training.train", data, *named, "--save-dir", folder)
    texts = []
    for engine, task in (("amlp-fairseq", "translation_interleaved"), ("fairseq", "translation")):
        printed = commands.run(
            "amlp_fairseq.evaluation.evaluate", folder, data, *named[-1:], "--results", found, "--engine", engine
        )
        assert printed.count(f"--task {task} ") == 2
        texts.append([(folder / f"generated.test.{way}.hyp").read_text("utf-8") for way in ("beam-2", "greedy")])
    assert texts[0] == texts[1]
    results = read_results(found)
    assert [line["engine"] for line in results] == ["amlp-fairseq"] * 2 + ["fairseq"] * 2
    ways = ["beam 2", "greedy", "beam 2, fairseq's search", "greedy, fairseq's search"]
    assert [line["decoding"] for line in results] == ways
    for ours, theirs in zip(results[:2], results[2:], strict=True):
        for name in ("bleu", "chrf", "steps_per_sentence", "sentences", "options"):
            assert ours[name] == theirs[name]
    for text, words in zip(texts[0], (["--beam", "3", "--lenpen", "0.3"], ["--beam", "1"]), strict=True):
        by_hand = commands.run(
            *("fairseq_cli.generate", data, "--path", folder / "average.pt", "--batch-size", "1", "--cpu", *words),
            *("--required-batch-size-multiple", "1"),
        )
        assert text.splitlines() == [fields[1] for _, fields in sorted(commands.lines(by_hand, "H").items())]
    assert len(set(texts[0][0].splitlines())) > 3
    refused = commands.run("amlp_fairseq.evaluation.evaluate", folder, data, "--cpu", "--sampling", check=False)
    assert "--sampling: only fairseq's own search has it (--engine fairseq)" in refused
    assert "--engine fairseq: fairseq's search does not decode a model of --task translation_interleaved" in evaluate(
        trained, "--engine", "fairseq", check=False
    )


def test_fewer_checkpoints_than_wanted(trained: Path, tmp_path: Path) -> None:
    """All that there are, and the result says how many; without any it is an error. DATA may have moved since the
    training."""
    (trained / "more.yaml").write_text("{base: row, average: {count: 3}, tune-lenpen: null}", encoding="utf-8")
    printed = evaluate(trained, "--results", tmp_path / "results.jsonl", config="more.yaml")
    assert f"evaluate: {trained / 'checkpoints'} has 2 checkpoints to average, not 3" in printed
    (line,) = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["average"] == {"last-epochs": 2}
    paths = [trained / f"checkpoints/{name}.pt" for name in ("average", "checkpoint59", "checkpoint60")]
    average, *states = [torch.load(path, weights_only=True)["model"]["decoder.layers.1.fc1.weight"] for path in paths]
    torch.testing.assert_close(average, torch.stack(states).mean(0))

    short = tmp_path / "short"  # than an interval of checkpoints
    short.mkdir()
    for name, own in (("recipe.yaml", "recipe.yaml"), ("checkpoint_last.pt", "checkpoint60.pt")):
        (short / name).write_bytes((trained / "checkpoints" / own).read_bytes())
    moved = (trained / "data").rename(tmp_path / "moved")
    try:
        printed = commands.run("amlp_fairseq.cli.main", "evaluate", short, moved, "--cpu")
    finally:
        moved.rename(trained / "data")
    assert f"evaluate: {short} has 1 checkpoints to average, not 2" in printed

    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "recipe.yaml").write_bytes((trained / "checkpoints/recipe.yaml").read_bytes())
    printed = commands.run("amlp_fairseq.cli.main", "evaluate", empty, trained / "data", "--cpu", check=False)
    assert f"evaluate: CHECKPOINTS {empty} has no checkpoint_last.pt" in printed
    assert not (empty / "results.jsonl").exists()


def test_validation_set_and_distilled_data(trained: Path, tmp_path: Path) -> None:
    """And results beside the checkpoints, where no file is named."""
    (trained / "data/manifest.json").write_text("{}", encoding="utf-8")
    (trained / "untuned.yaml").write_text("{base: row, tune-lenpen: null}", encoding="utf-8")
    printed = evaluate(trained, "--subset", "valid", "--batch-size", "4", config="untuned.yaml")
    (line,) = (trained / "checkpoints/results.jsonl").read_text(encoding="utf-8").splitlines()
    assert line in printed.splitlines()
    result = json.loads(line)
    assert (result["distilled"], result["split"], result["subset"], result["sentences"]) == (True, "valid", "v", 12)
    assert result["options"] == "--beam 2 --print-step --batch-size 4 --cpu"
    assert result["system"] == "untuned"
    assert "milliseconds_per_sentence" not in result


def test_sets_in_one_call_are_tuned_for_once(trained: Path, tmp_path: Path) -> None:
    """And have the results of a call each."""
    results = tmp_path / "results.jsonl"
    printed = evaluate(trained, "--subset", "valid,test", "--results", results, "--batch-size", "4", config="row.yaml")
    assert len(re.findall(r"lenpen \S+: \S+ BLEU on the validation set", printed)) == 2
    for subset in ("valid", "test"):
        evaluate(trained, "--subset", subset, "--results", results, "--batch-size", "4", config="row.yaml")
    together, alone = [], []
    for number, line in enumerate(results.read_text(encoding="utf-8").splitlines()):
        result = json.loads(line)
        (together if number < 2 else alone).append(
            {name: result[name] for name in ("split", "subset", "options", "bleu", "chrf", "sentences", "average")}
        )
    assert together == alone
    assert [result["sentences"] for result in together] == [12, 10]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ("", "nowhere data", "CHECKPOINTS nowhere: there is no such folder"),
        (
            "data/text.json",
            "checkpoints data",
            "has no text.json, which amlp-fairseq prepare writes; name its --corpus",
        ),
        (
            "data/text.json",
            "checkpoints data --corpus embedded",
            "is of fairseq-preprocess, without references as they",
        ),
        ("", "checkpoints data", "CHECKPOINTS checkpoints has no recipe.yaml: give --row and --scale"),
        (
            "",
            "checkpoints data --subset valid,tset",
            "--subset valid,tset: give valid, test, or both, joined by a comma",
        ),
        ("", "checkpoints data --row ibdecoder", "--row and --scale go together"),
        ("", "checkpoints data --scale embedded", "--row and --scale go together"),
        ("", "checkpoints data --row ibdecodr --scale embedded", "'ibdecodr' is unknown; did you mean 'ibdecoder'?"),
        ("row.yaml", "checkpoints data --row row.yaml --scale embedded", "row.yaml: No such file"),
    ],
)
def test_what_is_missing_is_named(
    change: str, words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "data/text.json").write_text('{"name": "embedded", "corpus": "embedded", "post_process": null}')
    (tmp_path / "row.yaml").write_text("average: {checkpoints: best, count: 1}")
    if change:
        (tmp_path / change).rename(tmp_path / "away")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        commands.call(module, monkeypatch, *words.split())


def test_a_terminal_shows_a_table(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has lines of JSON all the same; what was not measured is empty."""
    facts = {"system": "row", "distilled": True, "split": "test", "decoding": "greedy", "bleu": 7.5, "chrf": 30.25}
    lines = [facts, facts | {"decoding": "beam 2", "steps_per_sentence": 4.5, "milliseconds_per_sentence": 12.0}]
    monkeypatch.setattr(module.Evaluation, "results", lambda self, subsets: lines)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    commands.call(module, monkeypatch, trained / "checkpoints", trained / "data", results=tmp_path / "results.jsonl")
    columns, _, *rows = (
        [cell.strip() for cell in line.split("|")[3:-1]] for line in capsys.readouterr().out.splitlines()
    )
    assert columns == ["decoding", "split", "BLEU", "chrF", "calls", "ms/sentence"]
    assert rows == [["greedy", "test", "7.50", "30.25", "", ""], ["beam 2", "test", "7.50", "30.25", "4.50", "12.00"]]
    stored = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["decoding"] for line in stored] == ["greedy", "beam 2"]
    assert {line["updates"] for line in stored} == {180}


class InPieces:
    """A file to append to that writes piece after piece, as a disk or a network may, and lets others run in between."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __enter__(self) -> InPieces:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def write(self, text: str) -> None:
        for i in range(0, len(text), 500):
            os.write(self.descriptor, text[i : i + 500].encode())
            time.sleep(0)


def open_in_pieces(path: Path, *_: object, **__: object) -> InPieces:
    """In place of ``Path.open``."""
    return InPieces(path)


def append_many(path: Path, name: int, start: Any) -> None:
    start.wait()
    for number in range(20):
        append_results(path, [{"name": name, "number": number, "part": part, "x": "x" * 900} for part in range(9)])


def append_many_in_a_process(path: Path, name: int, start: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", open_in_pieces)
        append_many(path, name, start)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_results_of_several_at_once_are_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of one call stand together."""
    path = tmp_path / "new/results.jsonl"
    with monkeypatch.context() as patch:
        if kind == "threads":
            patch.setattr(Path, "open", open_in_pieces)
            barrier = threading.Barrier(3)
            writers: list[Any] = [threading.Thread(target=append_many, args=(path, name, barrier)) for name in range(3)]
        else:
            start = commands.forks.Barrier(3)
            target = append_many_in_a_process
            writers = [commands.forks.Process(target=target, args=(path, name, start)) for name in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    found = [(line["name"], line["number"], line["part"]) for line in map(json.loads, path.open(encoding="utf-8"))]
    assert sorted(found) == [(name, number, part) for name in range(3) for number in range(20) for part in range(9)]
    assert [part for _, _, part in found] == [*range(9)] * 60
    for name in range(3):
        assert [number for other, number, part in found if (other, part) == (name, 0)] == [*range(20)]


@pytest.mark.parametrize("option", ["--gen-subset valid", "--score-reference", "--prefix-size=2", "-s de"])
def test_options_that_decode_something_else_are_refused(option: str, trained: Path) -> None:
    printed = evaluate(trained, *option.split(), check=False)
    assert f"{re.split('[ =]', option)[0]} cannot be given: --subset says what is decoded" in printed


def test_one_evaluation_of_a_folder_at_a_time(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained / "checkpoints", tmp_path / "checkpoints")
    with FileLock(folder / ".evaluation.lock"):
        done = commands.fresh("amlp_fairseq", "evaluate", folder, trained / "data", "--cpu", check=False)
    assert done.returncode == 1
    assert f"CHECKPOINTS {folder}: another evaluation writes there" in done.stdout


def test_what_a_model_learned_from_is_not_the_data_that_it_decodes(trained: Path, tmp_path: Path) -> None:
    recipe = read(trained / "checkpoints/recipe.yaml")
    assert recipe.distilled is False
    shutil.copytree(trained / "checkpoints", tmp_path / "distilled")
    save(replace(recipe, distilled=True), tmp_path / "distilled/recipe.yaml")
    words = [tmp_path / "distilled", trained / "data", "--cpu", "--lenpen", "1", "--max-tokens", "200"]
    commands.run("amlp_fairseq.evaluation.evaluate", *words)
    *_, result = read_results(tmp_path / "distilled/results.jsonl")
    assert result["distilled"] is True
    assert "milliseconds_per_sentence" not in result
