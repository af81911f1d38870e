"""amlp-fairseq train: what an update sees, processes, what --print shows, and that nothing else is fairseq-train."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
import yaml
from fairseq import options
from fairseq.optim.adam import FairseqAdam
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import PolynomialDecayLRSchedule
from filelock import FileLock

from amlp_fairseq.training import config, train
from amlp_fairseq.training.results import data_sha256

TRAIN = "amlp_fairseq.training.train"
#: Adam on a tiny model, deterministic.
TINY = {
    **{"arch": "ibdecoder_tiny", "criterion": "label_smoothed_cross_entropy", "label-smoothing": 0.1},
    **{"optimizer": "adam", "lr": 0.002, "max-tokens": 12, "max-update": 6, "dropout": 0, "attention-dropout": 0},
    **{"share-all-embeddings": True, "required-batch-size-multiple": 1, "seed": 1, "no-epoch-checkpoints": True},
    "no-progress-bar": True,
}


@pytest.mark.parametrize(
    ("tokens", "processes", "max_tokens", "expected"),
    [(25000, 1, 4096, 6), (25000, 8, 3125, 1), (459000, 8, 3584, 16), (459000, 1, 3584, 128), (100, 8, 4096, 1)],
)
def test_update_frequency(tokens: int, processes: int, max_tokens: int, expected: int) -> None:
    assert train.update_frequency(tokens, processes, max_tokens) == expected


def test_the_command_says_what_an_update_sees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = config.load("ibdecoder", "wmt14_en_de", "paper")
    torchrun = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"}
    words = train.command(row, Path("data"), tmp_path, ["--cpu", "--max-tokens", "1000"], torchrun)
    assert words[words.index("--update-freq") + 1] == "6"
    assert words[-3:] == ["--cpu", "--max-tokens", "1000"]
    assert "4 processes x 1000 tokens x 6 batches = at most 24000 tokens; the paper: 25000" in capsys.readouterr().err
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    assert (args.distributed_world_size, args.distributed_rank, args.ddp_backend) == (4, 1, "legacy_ddp")
    assert (args.arch, args.max_tokens, args.update_freq) == ("ibdecoder_wmt_en_de", 1000, [6])
    assert (args.data, args.user_dir, args.save_dir) == ("data", str(commands.PLUGIN), str(tmp_path))
    words = train.command(row, Path("data"), tmp_path, ["--cpu", "--update-freq", "3"], {})
    assert "1 processes x 4096 tokens x 3 batches = at most 12288" in capsys.readouterr().err
    assert words.count("--update-freq") == 1
    assert not any(word.startswith("--distributed") for word in words)


@pytest.mark.parametrize(("row", "own", "updates"), [("ibdecoder", [], 6000), ("cmlmc", ["--max-update", "600"], 600)])
def test_the_rate_falls_to_zero(row: str, own: list[str], updates: int, tmp_path: Path) -> None:
    """Over as many updates as there are, at scale multi30k; fairseq's schedule says so."""
    words = train.command(config.load(row, "multi30k", "multi30k"), Path("data"), tmp_path, own, {})
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    args.total_num_update = float(args.total_num_update)  # fairseq-train reads it so
    schedule = PolynomialDecayLRSchedule(args, FairseqAdam(args, [torch.nn.Parameter(torch.zeros(1))]))
    (peak,) = args.lr
    assert args.max_update == updates
    assert [schedule.step_update(n) for n in (500, (500 + updates) // 2, updates)] == [peak, peak / 2, 0]


def test_a_rate_that_falls_to_zero_needs_a_last_update(tmp_path: Path) -> None:
    recipe = config.load("ibdecoder", "multi30k", "multi30k")
    with pytest.raises(ValueError, match=r"^--max-update 0: the learning rate is to be zero after the last update$"):
        train.command(recipe, Path("data"), tmp_path, ["--max-update", "0"], {})


def test_on_gpus_processes_are_told_their_device() -> None:
    torchrun = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "16", "RANK": "9", "LOCAL_RANK": "1"}
    words = train.world_flags(torchrun, cpu=False)
    args = options.parse_args_and_arch(options.get_training_parser(), ["DATA", "--arch", "transformer", *words])
    assert (args.distributed_world_size, args.distributed_rank, args.device_id) == (16, 9, 1)
    assert (args.distributed_init_method, args.distributed_no_spawn) == ("env://", True)
    assert train.world_flags({"WORLD_SIZE": "1"}, cpu=False) == []
    assert train.world_flags({"WORLD_SIZE": "4"}, cpu=False) == []  # a cluster has left it: there is no RANK


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarised pairs, two of them in every batch of ``--batch-size 2``, all of one length."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "raw").mkdir()
    for split in ("train", "valid", "test"):
        for language, sign in (("en", "a"), ("de", "b")):
            rows = [" ".join(f"{sign}{(7 * i + j * j) % 9}" for j in range(5)) for i in range(16)]
            (folder / f"raw/{split}.{language}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return commands.preprocess(folder / "raw", folder / "data", "en", "de")


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path) -> list[object]:
    """The words that name a row and a scale of the user's own."""
    average = {"checkpoints": "last-epochs", "count": 1}
    content = {"task": {"task": "translation_interleaved"}, "train": TINY, "average": average, "tokens-per-update": 48}
    return ["--row", write(tmp_path, "row", content), "--scale", write(tmp_path, "scale", {}), "--corpus", "embedded"]


def loss(meters: list[Any]) -> float:
    """The mean loss of fairseq's serialised meters, not rounded as in its log."""
    state = next(state for _, key, _, state in meters if key == "loss")
    return float(state["sum"] / state["count"])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]
    return loaded


def test_two_processes_equal_one_with_twice_the_batches(data: Path, own: list[object], tmp_path: Path) -> None:
    words = [data, *own, "--cpu", "--save-dir"]
    programs = [Path(sys.executable).with_name(name) for name in ("torchrun", "amlp-fairseq")]
    two = [programs[0], "--nproc_per_node", "2", "--master_port", "29531", "--no-python", programs[1], "train"]
    alone = commands.run(TRAIN, *words, tmp_path / "alone")
    together = commands.fresh(*two, *words, tmp_path / "together").stdout
    assert "1 processes x 12 tokens x 4 batches" in alone
    assert "2 processes x 12 tokens x 2 batches" in together
    assert re.search(r"^\+ fairseq-train .* --update-freq 4 --cpu$", alone, flags=re.MULTILINE)
    states = [torch.load(tmp_path / run / "checkpoint_last.pt", weights_only=True) for run in ("alone", "together")]
    losses = [{part: loss(state["extra_state"]["metrics"][part]) for part in ("train", "valid")} for state in states]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0]["train"] > 1
    assert states[0]["optimizer_history"][-1]["num_updates"] == 6
    recipes = [config.read(tmp_path / run / "recipe.yaml") for run in ("alone", "together")]
    expected = config.load(own[1], "embedded", own[3])  # type: ignore[arg-type]
    assert recipes[0] == recipes[1] == replace(expected, training_set=data_sha256(data, "train"), distilled=False)


def test_torchrun_without_the_flags_is_refused(data: Path, tmp_path: Path) -> None:
    """Stock: two trainings that know nothing of each other, in one folder."""
    words = [data, "--user-dir", commands.PLUGIN, "--arch", "transformer_tiny", "--max-tokens", 50, "--max-update", 1]
    environment = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    words += ["--cpu", "--save-dir", tmp_path]
    alone = commands.fresh("fairseq_cli.train", *words, env=environment, check=False)
    assert alone.returncode != 0
    assert "torchrun has started 2 processes, --distributed-world-size is 1" in alone.stdout
    spawned = ["--distributed-init-method", "tcp://localhost:29532", "--distributed-world-size", 2]
    assert "would train nothing" in commands.run("fairseq_cli.train", *words, *spawned, check=False)


def test_without_a_row_it_is_fairseq_train(data: Path, tmp_path: Path) -> None:
    """With --user-dir set: the architecture and the task are the plugin's."""
    words = ["--task", "translation_interleaved", "--cpu", *config.flags(TINY | {"max-update": 2}, "")]
    commands.run(TRAIN, data, *words, "--save-dir", tmp_path / "ours")
    commands.run("fairseq_cli.train", data, "--user-dir", commands.PLUGIN, *words, "--save-dir", tmp_path / "theirs")
    ours, theirs = weights(tmp_path / "ours"), weights(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not (tmp_path / "ours/recipe.yaml").exists()


def test_a_training_that_has_ended_is_known(data: Path, tmp_path: Path) -> None:
    """Of fairseq's own tasks, too, which would make one more update."""
    words = ["--arch", "transformer_tiny", "--max-tokens", "50", "--max-update", "2", "--optimizer", "adam", "--cpu"]
    assert not train.has_ended(words, tmp_path)
    commands.run("fairseq_cli.train", data, "--user-dir", commands.PLUGIN, *words, "--save-dir", tmp_path)
    assert train.has_ended(words, tmp_path)
    assert not train.has_ended([*words, "--max-update=3"], tmp_path)
    assert not train.has_ended(words[:4], tmp_path)
    checkpoint = tmp_path / "checkpoint_last.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    assert not train.has_ended(words, tmp_path)


def test_a_training_of_another_row_is_not_written_over(data: Path, own: list[object], tmp_path: Path) -> None:
    commands.run(TRAIN, data, *own, "--cpu", "--save-dir", tmp_path)
    recipe = (tmp_path / "recipe.yaml").read_bytes()
    other = ["--row", "cmlmc", "--scale", "embedded", *own[4:], "--cpu", "--save-dir", tmp_path]
    printed = commands.run(TRAIN, data, *other, check=False)
    assert f"--save-dir {tmp_path} has a training of --row row --scale scale: give another folder" in printed
    assert (tmp_path / "recipe.yaml").read_bytes() == recipe


def test_a_training_on_other_data_is_not_gone_on_with(data: Path, own: list[object], tmp_path: Path) -> None:
    """Be it because both have the default folder."""
    commands.run(TRAIN, data, *own, "--cpu", "--save-dir", tmp_path / "run")
    distilled = Path(shutil.copytree(data, tmp_path / "distilled"))
    (distilled / "train.en-de.de.bin").write_bytes(b"other words")
    recipe = (tmp_path / "run/recipe.yaml").read_bytes()
    printed = commands.run(TRAIN, distilled, *own, "--cpu", "--save-dir", tmp_path / "run", check=False)
    assert f"run has a training on another training set than DATA {distilled}'s: give another folder" in printed
    assert (tmp_path / "run/recipe.yaml").read_bytes() == recipe
    (distilled / "manifest.json").write_text("{}", encoding="utf-8")
    assert "--save-dir checkpoints/embedded-distilled/scale/row" in commands.run(TRAIN, distilled, *own, "--print")


def test_a_training_that_has_ended_keeps_its_recipe(data: Path, own: list[object], tmp_path: Path) -> None:
    words = [data, *own, "--cpu", "--save-dir", tmp_path]
    commands.run(TRAIN, *words, "--lr", "0.001")
    recipe = replace(config.read(tmp_path / "recipe.yaml"), tune_lenpen=[2.0])  # as evaluate would leave it
    config.save(recipe, tmp_path / "recipe.yaml")
    assert f"train: {tmp_path} has ended with other options, which stay: --lr 0.001" in commands.run(TRAIN, *words)
    assert config.read(tmp_path / "recipe.yaml") == recipe


def test_a_refused_training_leaves_the_recipe(data: Path, own: list[object], tmp_path: Path) -> None:
    with FileLock(tmp_path / ".recipe.lock"):
        printed = commands.run(TRAIN, data, *own, "--cpu", "--save-dir", tmp_path, check=False)
    assert f"--save-dir {tmp_path}: another training writes its checkpoints there" in printed
    assert not (tmp_path / "recipe.yaml").exists()


def test_intervals_end_with_epochs(data: Path, own: list[object], tmp_path: Path) -> None:
    """fairseq leaves no checkpoint of an interval where the epoch ends, too."""
    often = ["--no-epoch-checkpoints", "--save-interval-updates", "1", "--keep-interval-updates", "2"]
    commands.run(
        TRAIN, data, *own, "--cpu", "--save-dir", tmp_path, *often, "--max-tokens", "100000", "--max-update", "4"
    )
    assert sorted(path.name for path in tmp_path.glob("checkpoint_*_*.pt")) == [
        "checkpoint_3_3.pt",
        "checkpoint_4_4.pt",
    ]
    state = torch.load(tmp_path / "checkpoint_4_4.pt", weights_only=False)
    assert state["extra_state"]["train_iterator"]["epoch"] == 5


def test_print_shows_configuration_and_command(
    data: Path, own: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command is what fairseq-train can be given; nothing is written."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("fairseq_cli.train.cli_main", lambda: pytest.fail("it trains"))
    commands.call(train, monkeypatch, data, *own, "--print", "--cpu", "--lr", "0.5")
    shown, command = capsys.readouterr().out.rsplit("\n\n", 1)
    recipe = config.load(own[1], "embedded", own[3])  # type: ignore[arg-type]
    described = yaml.safe_load(shown)
    assert (described["row"], described["scale"], described["data"]) == ("row", "scale", "embedded")
    assert described["train"] == recipe.train == TINY
    assert described["task"] == {"task": "translation_interleaved", "source-lang": "en", "target-lang": "de"}
    program, *words = shlex.split(command)
    assert program == "fairseq-train"
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    assert (args.lr, args.update_freq, args.arch) == ([0.5], [4], "ibdecoder_tiny")
    assert args.save_dir == "checkpoints/embedded/scale/row"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("named", "languages", "direction"),
    [
        ("wmt14_en_de", ["en", "de"], ("en", "de")),
        ("wmt14_en_de", ["de", "en"], ("de", "en")),  # amlp-fairseq prepare wmt14_en_de --reverse
        ("", ["xx", "yy"], ("xx", "yy")),
        ("wmt14_en_de --corpus wmt14_de_en", ["en", "de"], ("de", "en")),
        ("wmt14_en_de --source-lang de --target-lang en", ["en", "de"], ("de", "en")),
        ("wmt14_en_de -s de -t en", ["en", "de"], ("de", "en")),
    ],
)
def test_the_direction_is_that_of_the_data(
    named: str,
    languages: list[str],
    direction: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless the user names another corpus or gives the languages."""
    corpus, _, more = named.partition(" ")
    described = {"name": corpus or "own", "corpus": corpus, "languages": languages}
    (tmp_path / "text.json").write_text(json.dumps(described), encoding="utf-8")
    words = ["--row", "ibdecoder", "--scale", "embedded", "--print", *more.split()]
    commands.call(train, monkeypatch, tmp_path, *words)
    shown, command = capsys.readouterr().out.rsplit("\n\n", 1)
    args = options.parse_args_and_arch(options.get_training_parser(), shlex.split(command)[1:])
    assert (args.source_lang, args.target_lang) == direction
    task = yaml.safe_load(shown)["task"]  # from where evaluate has them
    assert (task["source-lang"], task["target-lang"]) == direction


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--row nothing.yaml --scale embedded --corpus embedded", "nothing.yaml: No such file"),
        ("--row ibdecodr --scale embedded --corpus embedded", "'ibdecodr' is unknown; did you mean 'ibdecoder'?"),
        ("--row ibdecoder --scale embeded --corpus embedded", "'embeded' is unknown; did you mean 'embedded'?"),
        ("--row ibdecoder --scale embedded --corpus embeded", "'embeded' is unknown; did you mean 'embedded'?"),
        ("--row ibdecoder --scale embedded", "has no text.json, which amlp-fairseq prepare writes; name its --corpus"),
        ("--row ibdecoder", "required: --scale"),
        ("--row=ibdecoder", "required: --scale"),
    ],
)
def test_wrong_arguments(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SystemExit, ValueError)) as error:
        commands.call(train, monkeypatch, tmp_path, *words.split())
    assert message in capsys.readouterr().err + str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere --row ibdecoder --scale embedded", "DATA nowhere: there is no such folder"),
        ("--row ibdecoder --scale embedded", "required: DATA"),
        (
            ". --row ibdecoder --scale embedded --corpus embedded --max-updates 2",
            "--max-updates is unknown; did you mean --max-update?",
        ),
        (
            ". --row ibdecoder --scale embedded --corpus embedded --max-tokens 1e3",
            "argument --max-tokens: invalid int value: '1e3' (all options: ",
        ),
        (". --rows ibdecoder --arch transformer", "--rows is unknown"),
        (". --arch ibdecodr", "--arch 'ibdecodr' is unknown; did you mean ibdecoder?"),
        (". --scale embedded --arch transformer", "--scale is unknown"),
    ],
)
def test_misspelt_options_fail(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairseq_cli.train.main", lambda *_: pytest.fail("it trains"))
    with pytest.raises(SystemExit, match="2"):
        commands.call(train, monkeypatch, *words.split())
    assert message in capsys.readouterr().err
