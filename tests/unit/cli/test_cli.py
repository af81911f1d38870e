"""The command amlp-fairseq: it names its commands, each shows an example, and fairseq's get the plugin."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import commands
import pytest

from amlp_fairseq.cli import main as cli

RECIPES = "prepare train distill evaluate reproduce tables report average score parameters pmi".split()
FAIRSEQ = "generate interactive validate eval-lm preprocess".split()


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, status: object = None
) -> str:
    """What the command prints; ``status`` is what it ends with where it does not just return."""
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", *words])
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
    """One for each module that is a command."""
    text = printed(monkeypatch, capsys, *words)
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert listed[:-1] == [*RECIPES, *cli.TOOLS, "path"]
    assert text.splitlines()[-1].split(":")[0].split() == ", ".join(FAIRSEQ).split()
    for folder, names in (("recipes", RECIPES), ("cli", [*cli.TOOLS, "main"])):
        files = (commands.PLUGIN / folder).glob("*.py")
        assert {path.stem for path in files if "\ndef main()" in path.read_text(encoding="utf-8")} == set(names)


@pytest.mark.parametrize("name", [*RECIPES, *cli.TOOLS])
def test_help_of_a_command_has_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(monkeypatch, capsys, name, "--help", status=0)
    assert text.startswith(f"usage: amlp-fairseq {name} ")
    description = text.split("\n\n", 1)[1]
    assert re.search(rf"\n    amlp-fairseq {name}\s", description)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trian", "amlp-fairseq: 'trian' is unknown; did you mean 'train'?"),
        ("evalute", "amlp-fairseq: 'evalute' is unknown; did you mean 'evaluate'?"),
        ("generat", "amlp-fairseq: 'generat' is unknown; did you mean 'generate'?"),
        ("xyz", f"amlp-fairseq: 'xyz' is unknown; known: {', '.join([*RECIPES, *cli.TOOLS, *FAIRSEQ])}, path"),
    ],
)
def test_unknown_commands_name_the_nearest(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["amlp-fairseq", name, "--help"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == f"{message}\n"


@pytest.mark.parametrize("name", [*RECIPES, *cli.TOOLS])
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
