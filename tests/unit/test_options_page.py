"""amlp-fairseq options: what it lists is what fairseq's parsers take, and docs/options.md is up to date."""

from __future__ import annotations

import re
import sys

import commands
import pytest
from fairseq import options as fairseq_options

from amlp_fairseq.cli import main as cli
from amlp_fairseq.cli import options


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["amlp-fairseq", "options", *words])
    cli.main()
    return capsys.readouterr().out


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise: amlp-fairseq options --markdown > docs/options.md"""
    page = (commands.ROOT / "docs/options.md").read_text(encoding="utf-8")
    assert printed(monkeypatch, capsys, "--markdown") == page


def test_help_says_what_an_option_is() -> None:
    """By a noun or a verb: "self-attention of the decoder", not "how the words of the target see each other"."""
    text = re.compile(r"""(?:help=|"help": )f?"([^"]+)""")
    found = [
        (path.name, words)
        for folder in ("amlp_fairseq", "benchmarks", "examples")
        for path in (commands.ROOT / folder).rglob("*.py")
        for words in text.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 200
    assert [line for line in found if re.match(r"(what|whether|how|which|where)\b", line[1])] == []


def parsed(*words: str) -> dict[str, object]:
    return vars(fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), ["DATA", *words]))


@pytest.mark.parametrize(("task", "arch"), [("translation_cmlmc", "cmlmc_abc_wmt_en_de"),
                                            ("translation_interleaved", "ibdecoder_tiny"),
                                            ("translation", "aan_transformer_wmt_en_de_big")])  # fmt: skip
def test_defaults_are_those_of_a_command_line(task: str, arch: str) -> None:
    """What fairseq's parser leaves, or the model takes, where nothing is given."""
    found = parsed("--task", task, "--arch", arch, "--criterion", "nat_loss")
    listed = options.model_options(arch) + (options.task_options(task) if task in options.tasks() else [])
    compared = 0
    for option in listed:
        if option.default.startswith("the "):  # of another part of the command line
            continue
        value = found.get(option.flag.removeprefix("--").replace("-", "_"))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert float(option.default) == value, option
            compared += 1
        elif isinstance(value, str) and option.choices:
            assert option.default == value
            compared += 1
    assert compared >= 3


def test_an_architecture_has_its_own_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """d = 1024 of Transformer big, and the attentions of the AMLP paper's rows."""
    for name, line in (
        ("ibdecoder_wmt_en_de_big", r"--encoder-embed-dim +encoder embedding dimension \(default: 1024\)"),
        ("ibdecoder", r"--encoder-embed-dim +encoder embedding dimension \(default: 512\)"),
        ("cmlmc_abc_wmt_en_de", r"--decoder-cross-attention-type .*\(default: abc; one of abc, "),
    ):
        assert re.search(line, printed(monkeypatch, capsys, name))


def test_names_of_every_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    everything = printed(monkeypatch, capsys)
    for name in ("translation_interleaved", "ibdecoder_tiny", "amlp_cov", "--no-repeat-ngram-size"):
        assert re.search(rf"^ +{name}\b", everything, flags=re.MULTILINE)
    assert "translation_lev" not in everything
    task = printed(monkeypatch, capsys, "translation_cmlmc")
    assert "--iter-decode-with-beam " in task
    assert "--beam " not in task
    option = printed(monkeypatch, capsys, "--num-directions")
    assert option.splitlines()[0] == "task translation_interleaved:"
    assert printed(monkeypatch, capsys, "num-directions") == option


def test_unknown_names_get_the_nearest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        printed(monkeypatch, capsys, "ibdecodr")
    assert error.value.code == "amlp-fairseq options: NAME: 'ibdecodr' is unknown; did you mean 'ibdecoder'?"
