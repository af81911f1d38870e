"""The Multi30k recipe says what is wrong with its arguments before it starts."""

from __future__ import annotations

from pathlib import Path

import commands
import pytest

CASES = [
    (["--system", "ibdecoder"], "--data DIR is needed"),
    (["--data", ".", "--system", "gpt"], "--system 'gpt': choose one of transformer ar sat ibdecoder"),
    (["--data", "."], "--system '': choose one of"),
    (["--data", ".", "--system", "sat", "--profile", "huge"], "--profile 'huge': choose lite or base"),
    (["--data", ".", "--system", "sat", "--device", "tpu"], "--device 'tpu': choose cpu or cuda"),
    (["--data", ".", "--system", "sat"], "neither ./train.en nor ./train.en.gz exists"),
    (["--beam", "4"], "unknown argument '--beam'"),
    (["--data"], "--data needs a value"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_arguments_are_named(arguments: list[str], message: str, tmp_path: Path) -> None:
    script = commands.ROOT / "scripts/multi30k.sh"
    result = commands.fresh("bash", script, *arguments, check=False, cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert result.returncode == 2
    assert message in result.stdout
