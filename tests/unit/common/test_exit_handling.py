"""What workers print when the process that they work for is gone, and files on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from amlp_fairseq.common.exit_handling import _unless_orphaned, whole_lines


@pytest.mark.parametrize("orphaned", [True, False])
@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), EOFError(), ValueError("wrong")], ids=repr)
def test_a_connection_that_ends_with_the_parent_is_no_error(error: Exception, orphaned: bool) -> None:
    printed: list[Any] = []
    parent = -1 if orphaned else os.getppid()
    _unless_orphaned(parent, lambda *found: printed.append(found))(type(error), error, None)
    silent = orphaned and not isinstance(error, ValueError)
    assert printed == ([] if silent else [(type(error), error, None)])


def test_a_full_disk_is_named_by_its_file() -> None:
    """Also where nothing of it can be removed; closing it is no second error."""
    with pytest.raises(OSError, match="/dev/full") as error, whole_lines(Path("/dev/full")) as file:
        print("a line", file=file)
    assert error.value.errno == errno.ENOSPC
    assert error.value.__context__ is None


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    with whole_lines(tmp_path / "text") as file:
        print("é", file=file)
        assert (tmp_path / "text").read_bytes() == "é\n".encode()
