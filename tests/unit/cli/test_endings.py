"""What workers print when the process that they work for is gone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from amlp_fairseq.cli.endings import _unless_orphaned


@pytest.mark.parametrize("orphaned", [True, False])
@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), EOFError(), ValueError("wrong")], ids=repr)
def test_a_connection_that_ends_with_the_parent_is_no_error(error: Exception, orphaned: bool) -> None:
    printed: list[Any] = []
    parent = -1 if orphaned else os.getppid()
    _unless_orphaned(parent, lambda *found: printed.append(found))(type(error), error, None)
    silent = orphaned and not isinstance(error, ValueError)
    assert printed == ([] if silent else [(type(error), error, None)])
