"""Every old configuration ``configs/<dataset>/<row>.yaml`` and its row, corpus and scale mean the same to fairseq.

Temporary, with old_recipe.py (the old loader) and the old configurations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import commands
import old_recipe
import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from amlp_fairseq.recipes import config

#: What other names had been; the names of the papers' corpora stay.
SMALL = {
    "embedded": ("embedded", "embedded"),
    "multi30k": ("multi30k", "multi30k"),
    "multi30k_base": ("multi30k", "multi30k_base"),
}
#: configs/embedded_amlp was for one investigation, of which docs/attentions.md tells; it has no successor.
OLD = [
    path for path in sorted((commands.ROOT / "configs").glob("*_*/[!_]*.yaml")) if path.parent.name != "embedded_amlp"
]
OLD += sorted(
    path for name in ("embedded", "multi30k") for path in (commands.ROOT / "configs" / name).glob("[!_]*.yaml")
)


def configuration(task: dict[str, Any], train: dict[str, Any]) -> Any:
    """What fairseq-train's own parser makes of the flags, as plain containers."""
    words = ["DATA", *config.flags(task, ""), *config.flags(train, "")]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    parsed = plain(OmegaConf.to_container(cfg))
    for side in ("encoder", "decoder"):  # what amlp_fairseq/attention/dynamic_conv.py does where there are none
        if parsed["model"].get(f"{side}_conv_heads", 1) is None:
            parsed["model"][f"{side}_conv_heads"] = parsed["model"][f"{side}_attention_heads"]
    return parsed


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return plain(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else value


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            found
            for name in sorted(one.keys() | other.keys())
            for found in differences(one.get(name, "missing"), other.get(name, "missing"), f"{where}.{name}")
        ]
    return [] if one == other else [f"{where}: {one!r}, now {other!r}"]


def test_there_are_old_ones() -> None:
    assert len(OLD) == 240
    assert {path.parent.name for path in OLD} == {*SMALL, *config.names("data")} - {"embedded_amlp"}


@pytest.mark.parametrize("path", OLD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_same(path: Path) -> None:
    dataset, row = path.parent.name, path.stem
    if dataset == "wmt17_zh_en" and row != "self_attention":
        row += "_glu"
    old, new = old_recipe.load(path), config.load(row, *SMALL.get(dataset, (dataset, "paper")))
    before, now = configuration(old.task, old.train), configuration(new.task, new.train)
    assert before["model"]["_name"]
    assert before["task"]["_name"]
    assert not differences(before, now)
    assert (old.tokens_per_update, old.dictionary) == (new.tokens_per_update, new.dictionary)
    assert list(old.generate) == list(new.generate)
    assert old.generate == new.generate
    assert (old.tune_lenpen, old.averages) == (new.tune_lenpen, new.averages)
    if dataset not in SMALL:
        assert [{**entry, "data": dataset} for entry in old.published] == new.published
    else:
        # The old ones had them from WMT14 English-German; those of rows that it lacks were nobody's.
        german = [{**entry, "data": "wmt14_en_de"} for entry in old.published]
        assert german == new.published
