"""The table of changes of fairseq: a reader finds what was changed in one of its modules in one file."""

from __future__ import annotations

import pkgutil
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from amlp_fairseq.compat import changes, literal_options
from amlp_fairseq.compat.changes import Change, install
from amlp_fairseq.plugin import CHANGES

#: Changes that no module of compat with the name of fairseq's can make: which files they are in.
ELSEWHERE = {
    "fairseq.file_io:PathManager.isfile": "as_checkpoint",
    "fairseq.models.text_to_speech.vocoder:get_mel_filters": "audio",
    **{f"{module}:eval": "literal_options" for module in literal_options.MODULES},
}
OF_FAIRSEQ = [change for change in CHANGES if change.target.startswith("fairseq.")]


def test_a_change_is_in_the_module_with_the_name_of_fairseqs() -> None:
    for change in OF_FAIRSEQ:
        value = change.around or change.value
        file = (value.func if isinstance(value, partial) else value).__module__.split(".")[-1]
        assert file == ELSEWHERE.get(change.target, file), change.target
        assert change.target in ELSEWHERE or file in change.target.partition(":")[0].split("."), change.target


def test_each_is_installed_once() -> None:
    """Of the functions around stock's one is ours."""
    for change in OF_FAIRSEQ:
        now = pkgutil.resolve_name(change.target)
        if change.around is None:
            assert now is change.value, change.target
        else:
            functions = [now]
            while inner := getattr(functions[-1], "__wrapped__", None):
                functions.append(inner)
            ours = [each.__code__.co_filename == changes.__file__ for each in functions]
            assert (ours[0], sum(ours)) == (True, 1), change.target


def test_nothing_is_changed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(double=lambda x: 2 * x, name="stock")
    monkeypatch.setitem(sys.modules, "stock_module", module)  # type: ignore[arg-type]
    install(
        [
            Change("stock_module:double", "too small", lambda stock, x: stock(x) + 1),
            Change("stock_module:name", "wrong", value="ours"),
        ]
    )
    assert (module.double(3), module.name) == (7, "ours")
    with pytest.raises(ValueError, match="stock_module:name is changed twice"):
        install([Change("stock_module:name", "a", value=1), Change("stock_module:name", "b", value=2)])
