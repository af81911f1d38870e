"""Names of folders that fairseq would take apart, and repeated options, are refused before anything is made; mistakes
lead to what the command takes."""

from __future__ import annotations

import re
from pathlib import Path

import commands
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from omegaconf import OmegaConf

from amlp_fairseq.cli import main
from amlp_fairseq.common.arguments import add_device, as_fairseq_has_it, command_parser, parse_with_fairseqs, say_next
from amlp_fairseq.compat.flags import known_flags
from amlp_fairseq.training.data_folder import data_folder, with_data_folder


def refused(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused, which begins with its name."""
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"amlp-fairseq {words.split()[0]}: ")
    return line


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ("prepare text new:1", "OUT"),
        ("distill teacher.pt data new:1", "OUT"),
        ("train . --row ibdecoder --scale embedded --save-dir new:1", "--save-dir"),
        ("package checkpoint.pt --out new:1", "--out"),
    ],
)
def test_no_colon_in_the_name_of_a_result(
    words: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(words, monkeypatch, capsys)
    assert f"argument {argument}: 'new:1': choose a name without ':'" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("prepare text out --train a.en a.de --valid c.en c.de --train b.en b.de", "--train"),
        ("prepare text out --train=a.en --train=a.en", "--train"),
        ("translate --model model --shards a --shards b", "--shards"),
        ("average --inputs a.pt --output c.pt --inputs b.pt", "--inputs"),
        ("reproduce --corpus embedded --scale embedded --table ibdecoder --seeds 1 --seeds 2", "--seeds"),
    ],
)
def test_options_of_several_values_are_given_once(
    words: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{option} is given twice: name all its values behind one" in refused(words, monkeypatch, capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "translate --model a --model b",
            "--model is given twice: a and b; models that decode as one are given as --model A:B",
        ),
        ("serve --model=a --model=a", "--model is given twice: a and a; models that decode as one are given as "),
        ("export --model a --out b --model c", "--model is given twice: a and c; give one (all options"),
        ("package a.pt --out b --data c --out d", "--out is given twice: b and d; give one (all options"),
        ("report --out a.html --out b.html", "--out is given twice: a.html and b.html; give one (all options"),
    ],
)
def test_files_and_folders_are_given_once(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(words, monkeypatch, capsys)


def test_other_options_may_be_given_twice() -> None:
    parser = command_parser("x", None)
    parser.add_argument("--model", action="append")
    parser.add_argument("--more", action="extend", nargs="+")
    parser.add_argument("--beam", type=int)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    words = "--model a --more b --beam 1 --seeds 1 --model c --more d e --beam 2".split()
    for _ in range(2):  # a parser may be used again
        args = parser.parse_args(words)
        assert vars(args) == {"model": ["a", "c"], "more": ["b", "d", "e"], "beam": 2, "seeds": [1]}


MODEL = commands.ROOT / "examples/models"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"translate --model {MODEL}/ar --int8", "--decode-dtype int8"),
        (f"translate --model {MODEL}/ar --threads 2", "OMP_NUM_THREADS=N"),
        (f"translate --model {MODEL}/ar --beem 2", "--beam"),
        (f"translate --model {MODEL}/cmlmc --beem 2", None),  # it takes no --beam
        (f"translate --model {MODEL}/cmlmc --iter-decode-max-itr 2", "--iter-decode-max-iter"),
        (f"translate --model {MODEL}/ar --iter-decode-max-itr 2", None),
        (f"serve --model {MODEL}/ar --workers 2", None),
        (f"serve --model {MODEL}/ar --prot 1", "--port"),
        (f"compare --model {MODEL}/ar --model {MODEL}/cmlmc --source x --reference y --beem 2", None),
        (f"watch x --model {MODEL}/ar --num-beams=2", "--beam"),
        ("evaluate x y --workers 2", "--num-workers"),
        ("evaluate x y --split test", "--subset"),
        ("evaluate x y --results-pth r", "--results"),  # --results-path is refused
        ("distill x y z --workers 2", "--num-workers"),
        ("distill x y z --nbst 2", None),  # refused
        ("train . --row ibdecoder --scale embedded --corpus embedded --epochs 2", "--max-epoch"),
        ("train . --row ibdecoder --scale embedded --corpus embedded --decoder-layrs 2", "--decoder-layers"),
        ("train . --row ibdecoder --scale embedded --corpus embedded --nat-abltion 2", None),  # of other models
        ("generate . --epochs 2", None),
    ],
)
def test_what_is_suggested_is_taken(
    words: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that the command would refuse; other programs' names lead to what the thing is called here."""
    line = refused(words, monkeypatch, capsys)
    assert " is unknown" in line
    way = re.search(r"(?:did you mean|; give) (.*?)(?: in front .*)?\??(?: \(all options|$)", line)
    assert (way and way.group(1)) == expected


@pytest.mark.parametrize(
    "words", ["train . --row ibdecoder --scale embedded --corpus embedded", "train . --arch plugin_transformer"]
)
def test_an_option_that_is_gone(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--freeze-encoder is gone; " in refused(f"{words} --freeze-encoder", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["d", "--device", "cpu", "--beam", "2"], ["d", "--beam", "2", "--cpu"]),
        (["d", "--device=cuda"], ["d"]),
        (["d", "--cpu"], ["d", "--cpu"]),
    ],
)
def test_one_spelling_for_the_device(words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_fairseq_has_it(words) == expected
    parser = command_parser("x", None)
    parser.add_argument("data")
    parser.add_argument("--beam")
    monkeypatch.setattr("sys.argv", ["x", *words])
    rest = parse_with_fairseqs(parser, known_flags, forward_device=True)[1]
    assert rest == (["--cpu"] if "--cpu" in expected else [])
    own = command_parser("x", None)
    add_device(own, "cuda", "")
    assert own.parse_known_args(words)[0].device == ("cpu" if "--cpu" in expected else "cuda")


def test_fairseq_has_no_choice_among_gpus() -> None:
    with pytest.raises(ValueError, match=r"--device cuda:1: .*CUDA_VISIBLE_DEVICES"):
        as_fairseq_has_it(["--device", "cuda:1"])


def test_missing_arguments_come_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command_parser("x", None)
    parser.add_argument("teacher", metavar="TEACHER")
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--beam")
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["model"])
    assert "DATA, --out; usage: amlp-fairseq x --out DIR TEACHER DATA (" in capsys.readouterr().err


def test_the_folder_of_prepare_stands_for_the_data_in_it(tmp_path: Path) -> None:
    (tmp_path / "data/data-bin").mkdir(parents=True)
    (tmp_path / "data/data-bin/dict.en.txt").touch()
    assert data_folder(str(tmp_path / "data")) == tmp_path / "data/data-bin"
    assert data_folder(str(tmp_path / "data/data-bin")) == tmp_path / "data/data-bin"
    (tmp_path / "data/dict.en.txt").touch()
    assert data_folder(str(tmp_path / "data")) == tmp_path / "data"
    assert data_folder(str(tmp_path / "none")) == tmp_path / "none"
    (tmp_path / "data/dict.en.txt").unlink()
    assert with_data_folder([str(tmp_path / "data"), "--path", "x"]) == [f"{tmp_path}/data/data-bin", "--path", "x"]
    assert with_data_folder(["--path", "x", str(tmp_path / "data")]) == ["--path", "x", str(tmp_path / "data")]


def test_the_folder_of_a_training_stands_for_its_average(tmp_path: Path) -> None:
    """Where fairseq reads a checkpoint: --path, --finetune-from-model, --rescore-path, …"""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(MODEL / "ar"))
    torch.save({**state, "cfg": OmegaConf.to_container(state["cfg"])}, tmp_path / "average.pt")
    expected, found = (checkpoint_utils.load_checkpoint_to_cpu(str(path)) for path in (MODEL / "ar", tmp_path))
    assert PathManager.isfile(str(tmp_path))
    assert all(torch.equal(found["model"][name], weight) for name, weight in expected["model"].items())
    (tmp_path / "average.pt").unlink()
    assert not PathManager.isfile(str(tmp_path))


def test_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    say_next("evaluate", Path("a folder"), Path("data"))
    assert capsys.readouterr() == ("", "next: amlp-fairseq evaluate 'a folder' data\n")
