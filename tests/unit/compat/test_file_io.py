"""Copies that are killed half-way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fairseq.file_io import PathManager

import amlp_fairseq.plugin  # noqa: F401  (makes copies whole)


def test_a_killed_copy_leaves_the_checkpoint_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, last = tmp_path / "checkpoint7.pt", tmp_path / "checkpoint_last.pt"
    newest.write_bytes(b"epoch seven")
    last.write_bytes(b"epoch six")

    def killed(source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:4])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(newest), str(last), overwrite=True)
    assert last.read_bytes() == b"epoch six"
    assert PathManager.copy(str(newest), str(last), overwrite=True)
    assert last.read_bytes() == b"epoch seven"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint7.pt", "checkpoint_last.pt"]
