"""Options by their former names mean the same wherever people have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import commands
import pytest
import torch
import yaml
from fairseq import checkpoint_utils, options

from amlp_fairseq.common import renamed_options
from amlp_fairseq.common.arguments import command_parser
from amlp_fairseq.common.renamed_options import with_present_flags, with_present_names
from amlp_fairseq.compat import commands as fairseqs_commands
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.model_folder.format import write
from amlp_fairseq.training import config
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.translator import Translator

#: Written before --words-behind-end became --words-after-end; its value is not the default.
OLD_FOLDER = commands.ROOT / "examples/models/ibdecoder_sa"


@pytest.fixture(autouse=True)
def _nothing_was_warned_of() -> None:
    renamed_options._warn.cache_clear()


def test_present_names_win_whatever_the_order() -> None:
    former, present = {"words-behind-end": 1}, {"words-after-end": 2}
    assert with_present_names({**former, "x": [0]}) == {"words-after-end": 1, "x": [0]}
    assert with_present_names(former | present) == with_present_names(present | former) == present


def test_other_words_of_a_command_line_stay() -> None:
    words = ["words_behind_end", "--in=words-behind-end", "--words-behind-ends"]
    assert with_present_flags(words) == words


@pytest.mark.parametrize("words", [["--words-behind-end", "count"], ["--words-behind-end=count"]])
def test_the_command_line_of_fairseq(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = options.get_generation_parser(default_task="translation_interleaved")
    assert options.parse_args_and_arch(parser, ["DATA", *words]).words_after_end == "count"
    (warning,) = capsys.readouterr().err.splitlines()
    assert "--words-behind-end" in warning
    assert "--words-after-end" in warning


def test_the_command_lines_of_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    """Words that a command leaves to fairseq have the present name."""
    words = ["--words-behind-end", "count"]
    assert command_parser("translate", None).parse_known_args(words)[1] == ["--words-after-end", "count"]
    assert decoding_options.parse(words, "translation_interleaved") == {"words_after_end": "count"}
    assert len(capsys.readouterr().err.splitlines()) == 1
    fairseqs_commands._check_overrides("{'words_behind_end': 'count'}")


@pytest.mark.parametrize("override", ["words_behind_end", "words_after_end", None])
def test_a_checkpoint(override: str | None, tmp_path: Path) -> None:
    state = checkpoint_utils.load_checkpoint_to_cpu(str(OLD_FOLDER))
    state["cfg"].task = {"_name": "translation_interleaved", "words_behind_end": "count"}
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    overrides = {} if override is None else {override: "ignore"}
    task = checkpoint_utils.load_checkpoint_to_cpu(str(path), overrides)["cfg"].task
    assert task == {"_name": "translation_interleaved", "words_after_end": "ignore" if override else "count"}


def test_a_model_folder_and_one_that_is_made_of_it(tmp_path: Path) -> None:
    assert '"words_behind_end": "count"' in (OLD_FOLDER / "config.json").read_text(encoding="utf-8")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(OLD_FOLDER))
    content = {"languages": ["de", "en"], "text": {}, "decoding": {"words_behind_end": "ignore"}}
    write(tmp_path / "new", state, "float32", {**content, "longest_source": None}, {})
    assert '"words_after_end": "count"' in (tmp_path / "new/config.json").read_text(encoding="utf-8")
    assert read_config(tmp_path / "new")["decoding"] == {"words_after_end": "ignore"}


@pytest.mark.parametrize("name", ["words_behind_end", "words_after_end"])
def test_python_calls(name: str) -> None:
    old: dict[str, Any] = {name: "ignore"}
    counting, ignoring = Translator(OLD_FOLDER), Translator(OLD_FOLDER, **old)
    assert (counting.pytorch().cfg.task.words_after_end, ignoring.pytorch().cfg.task.words_after_end) == (
        "count",
        "ignore",
    )
    text = ["a black dog in a field ."]
    assert counting.translations(text, **old) == ignoring.translations(text) != counting.translations(text)


def test_a_recipe(tmp_path: Path) -> None:
    """Also one that builds on a row with the present name, and the recipe in the folder of a training."""
    path = tmp_path / "mine.yaml"
    rows = {"mine": {"task": {"words-behind-end": "count"}}}
    scale = tmp_path / "scale.yaml"
    scale.write_text(yaml.safe_dump({"base": "embedded", "families": {"_ibdecoder": rows["mine"]}}), encoding="utf-8")
    path.write_text(yaml.safe_dump({"base": "ibdecoder_sa", "task": {"words-behind-end": "ignore"}}), encoding="utf-8")
    recipe = config.load(path, "", "embedded")
    assert recipe.task["words-after-end"] == "ignore"
    assert "words-behind-end" not in recipe.task
    assert config.load("ibdecoder", "", scale).task["words-after-end"] == "count"
    config.save(recipe, tmp_path / "recipe.yaml")
    saved = (tmp_path / "recipe.yaml").read_text(encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(saved.replace("words-after-end", "words-behind-end"), encoding="utf-8")
    assert config.read(tmp_path / "recipe.yaml") == recipe
