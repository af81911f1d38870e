"""The command amlp-fairseq: it names its commands, each shows an example, and fairseq's get the plugin."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import commands
import pytest

from amlp_fairseq.cli import main as cli
from amlp_fairseq.cli import options
from amlp_fairseq.cli.arguments import DECODING
from amlp_fairseq.translator import decoding_options

FAIRSEQ = "generate interactive validate eval-lm preprocess".split()


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, status: object = None
) -> str:
    """What the command prints; ``status`` is what it ends with where it does not just return."""
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", *words])
    monkeypatch.setattr(cli, "is_quick", lambda words: False)
    if status is None:
        cli.main()
    else:
        with pytest.raises(SystemExit) as error:
            cli.main()
        assert error.value.code == status
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One for each module that is a command, in groups."""
    text = printed(monkeypatch, capsys, *words)
    groups = [block.splitlines() for block in text.split("\n\n")[3:]]
    assert all(heading.endswith(":") and not heading.startswith(" ") for heading, *_ in groups)
    *own, fairseqs = [[line.removeprefix("  ") for line in lines] for _, *lines in groups]
    assert max(map(len, own)) <= 6
    listed = [line.split()[0] for lines in own for line in lines]
    assert listed == [*cli.MODULES, "path"]
    assert fairseqs == [", ".join(FAIRSEQ)]
    found = {
        path.stem.replace("_", "-"): folder
        for folder in ("cli", "corpora", "evaluation", "training")
        for path in (commands.PLUGIN / folder).glob("*.py")
        if "\ndef main()" in path.read_text(encoding="utf-8")
    }
    assert found == {**cli.MODULES, "main": "cli"}


HELP = """
import contextlib, io, json, sys
from amlp_fairseq.cli.main import quick_answer
from amlp_fairseq.cli.quick_help import stand_ins
printed, imported = {}, set()
for words in json.loads(sys.argv[1]):
    output = io.StringIO()
    sys.argv = ["amlp-fairseq", *words]
    with contextlib.redirect_stdout(output), stand_ins():
        try:
            quick_answer(words)
        except SystemExit as end:
            assert not end.code, (words, end.code)
        imported |= {name.split(".")[0] for name, module in sys.modules.items() if hasattr(module, "__file__")}
    printed[" ".join(words)] = output.getvalue()
print(json.dumps([printed, sorted(imported)]))
"""


def test_help_and_version_do_without_torch_and_fairseq(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are what the command prints when everything is imported."""
    asked = [[], ["--help"], ["--version"], ["path"], *([name, "--help"] for name in [*cli.MODULES, *FAIRSEQ])]
    asked = [words or ["--help"] for words in asked]
    monkeypatch.setenv("COLUMNS", "100")
    quick, modules = json.loads(commands.fresh(sys.executable, "-c", HELP, json.dumps(asked)).stdout)
    assert "amlp_fairseq" in modules
    assert not {"torch", "fairseq", "numpy", "omegaconf", "rich", "sacrebleu", "safetensors", "yaml"} & {*modules}
    for words in asked:
        if words[0] in FAIRSEQ:
            assert f"amlp-fairseq {words[0]} --help --verbose" in quick.pop(f"{words[0]} --help")
        else:
            text = printed(monkeypatch, capsys, *words, status=None if len(words) == 1 else 0)
            assert quick.pop(" ".join(words), text) == text
    assert not quick


def test_the_program_answers_quickly_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch is imported')", encoding="utf-8")
    program, path = Path(sys.executable).with_name("amlp-fairseq"), {"PYTHONPATH": f"{tmp_path}:{commands.ROOT}"}
    for words in (["--version"], ["evaluate", "--help"], ["generate", "--help"]):
        done = commands.fresh(program, *words, env=path)
        assert done.stdout.startswith(("amlp-fairseq 0.", f"usage: amlp-fairseq {words[0]} ")), done
    assert "torch is imported" in commands.fresh(program, "score", "a", "b", check=False, env=path).stdout


@pytest.mark.parametrize("name", cli.MODULES)
def test_help_of_a_command_has_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(monkeypatch, capsys, name, "--help", status=0)
    assert text.startswith(f"usage: amlp-fairseq {name} ")
    description = text.split("\n\n", 1)[1]
    assert re.search(rf"\n    amlp-fairseq {name}\s", description)


def test_decoding_options_in_help_have_fairseqs_defaults() -> None:
    known = {option.flag: option for option in options.generation_options()}
    known |= {option.flag: option for task in options.tasks() for option in options.task_options(task)}
    assert {flag: known[flag].default for flag in DECODING} == {flag: text for flag, (text, _) in DECODING.items()}
    for task in options.tasks():
        assert decoding_options.flags(task) & {*DECODING}


@pytest.mark.parametrize("name", ["translate", "serve", "compare", "watch"])
def test_help_lists_the_decoding_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(monkeypatch, capsys, name, "--help", status=0)
    assert [line.split()[0] for line in text.splitlines() if line.startswith("    --")] == [*DECODING]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trian", "amlp-fairseq: 'trian' is unknown; did you mean 'train'?"),
        ("evalute", "amlp-fairseq: 'evalute' is unknown; did you mean 'evaluate'?"),
        ("generat", "amlp-fairseq: 'generat' is unknown; did you mean 'generate'?"),
        ("xyz", f"amlp-fairseq: 'xyz' is unknown; known: {', '.join([*cli.MODULES, 'path', *FAIRSEQ])}"),
    ],
)
def test_unknown_commands_name_the_nearest(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", name, "--help"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == f"{message}\n"


@pytest.mark.parametrize("name", cli.MODULES)
def test_wrong_usage_is_one_line_and_status_2(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", name, "--nonsense", "x", "--more"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"amlp-fairseq {name}: ")
    assert line.endswith(f" (all options: amlp-fairseq {name} --help)")


@pytest.mark.parametrize("name", FAIRSEQ)
def test_commands_of_fairseq_get_the_plugin(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    module = importlib.import_module(f"fairseq_cli.{name.replace('-', '_')}")
    monkeypatch.setattr(module, "cli_main", lambda: called.append(sys.argv[1:]))
    printed(monkeypatch, capsys, name, "data", "--cpu")
    plugin = [] if name == "preprocess" else ["--user-dir", str(commands.PLUGIN)]
    assert called == [[*plugin, "data", "--cpu"]]


def test_path_is_the_folder_of_the_plugin() -> None:
    """The installed program and ``python -m amlp_fairseq`` are the same."""
    programs = ([Path(sys.executable).with_name("amlp-fairseq")], [sys.executable, "-m", "amlp_fairseq"])
    printed = [commands.fresh(*program, "path", cwd="/").stdout for program in programs]
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[-1] == str(commands.PLUGIN)
