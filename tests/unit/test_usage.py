"""Names of folders that fairseq would take apart, and repeated options, are refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import commands
import pytest

from amlp_fairseq.usage import command_parser


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ("prepare text new:1", "OUT"),
        ("distill teacher.pt data new:1", "OUT"),
        ("train . --row ibdecoder --scale embedded --save-dir new:1", "--save-dir"),
        ("package checkpoint.pt --out new:1", "--out"),
    ],
)
def test_no_colon_in_the_name_of_a_result(words: str, argument: str, tmp_path: Path) -> None:
    printed = commands.run("amlp_fairseq.cli.main", *words.split(), check=False, cwd=tmp_path)
    command = words.split()[0]
    message = f"argument {argument}: 'new:1': choose a name without ':', at which fairseq splits paths (all options"
    assert printed.startswith(f"amlp-fairseq {command}: {message}")
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
def test_options_of_several_values_are_given_once(words: str, option: str, tmp_path: Path) -> None:
    printed = commands.run("amlp_fairseq.cli.main", *words.split(), check=False, cwd=tmp_path)
    command = words.split()[0]
    assert printed == (
        f"amlp-fairseq {command}: {option} is given twice: name all its values behind one (all options: amlp-fairseq "
        f"{command} --help)\n"
    )
    assert not list(tmp_path.iterdir())


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
