"""Versions that were not tested are warned of, impossible ones are refused with the way out."""

from __future__ import annotations

import sys
import warnings

import commands
import pytest

from amlp_fairseq.common import versions


def installed(monkeypatch: pytest.MonkeyPatch, **numbers: str | None) -> None:
    def version(name: str) -> str:
        number = {"torch": "2.13.0+cpu", "triton": "3.7.1", "numpy": "2.0.0", **numbers}[name]
        if number is None:
            raise versions.PackageNotFoundError(name)
        return number

    monkeypatch.setattr(versions, "version", version)


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"triton": None},
        {"torch": "2.11.0", "numpy": "1.26.4", "triton": "3.6.0"},
        {"torch": "2.14.1", "triton": "3.8.0"},
    ],
)
def test_tested_versions_are_silent(monkeypatch: pytest.MonkeyPatch, numbers: dict[str, str | None]) -> None:
    installed(monkeypatch, **numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check()


def test_one_warning_names_all_that_is_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch="2.20.1", triton="3.5.0")
    with pytest.warns(UserWarning, match="not been tested") as caught:
        versions.check()
    assert [str(warning.message) for warning in caught] == [
        "amlp_fairseq has not been tested with torch 2.20 (tested: 2.11 to 2.14), triton 3.5 (tested: 3.6 to 3.8)"
        '; the tested torch: pip install "amlp-fairseq[train]"'
    ]


def test_impossible_versions_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch="1.13.1")
    with pytest.raises(
        ImportError, match=r'needs torch 2\.6 or newer, this is 1\.13: pip install "amlp-fairseq\[train\]"'
    ):
        versions.check()
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(ImportError, match=r"needs Python 3\.10 or newer, this is 3\.9: make a virtual environment"):
        versions.check()


def test_missing_torch_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch=None)
    monkeypatch.setattr(versions, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'needs torch, which is not installed: pip install "amlp-fairseq\[train\]"$'):
        versions.check()


def test_the_check_comes_first() -> None:
    """Before anything of fairseq or torch is imported, which would fail in its own way."""
    program = (
        "import importlib.metadata as m; m.version = lambda name: '1.0'\n"
        "import sys; sys.modules['torch'] = sys.modules['fairseq'] = None\nimport amlp_fairseq.plugin"
    )
    done = commands.fresh(sys.executable, "-c", program, cwd=commands.ROOT, check=False)
    assert done.stdout.strip().splitlines()[-1].startswith("ImportError: amlp_fairseq needs torch 2.6 or newer")
