"""Files that are there whole or not at all, locks, and settings of work that goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from amlp_fairseq.common.files import hold, line_by_line, locked, remove_parts, resume, whole, writing


@pytest.mark.parametrize("unique", [False, True])
def test_files_are_there_together_or_not_at_all(unique: bool, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("before", encoding="utf-8")
    with pytest.raises(TypeError), writing(one, two, unique=unique) as files:
        files[1].write(None)  # type: ignore[arg-type]
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"one": "before"}
    with writing(one, two, unique=unique) as files:
        for file in files:
            file.write("a\r\nline\n")
        assert one.read_text(encoding="utf-8") == "before"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("one", "two"), b"a\r\nline\n"
    )


def test_a_folder_takes_the_place_of_what_a_killed_process_has_left(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part/old").touch()
    with whole(tmp_path / "out") as (part,):
        part.mkdir()
        (part / "new").touch()
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["out", "out/new"]
    (tmp_path / f".out.{'0' * 32}.part").touch()
    (tmp_path / ".out.part").touch()
    remove_parts(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.part", "out"]


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space") as found,
        writing(tmp_path / "text"),
        open("/dev/full", "w") as full,
    ):
        full.write("text")
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(tmp_path / "text"))


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    with line_by_line(tmp_path / "text") as file:
        print("é", file=file)
        assert (tmp_path / "text").read_bytes() == "é\n".encode()
    with pytest.raises(OSError, match="/dev/full"), line_by_line(Path("/dev/full")) as file:
        print("a line", file=file)


def test_a_lock_is_one_of_flock_and_children_that_inherit_it_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, "busy") as file:
        with pytest.raises(ValueError, match=r"^busy$"), locked(path, "busy"):
            pass
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)
        code = "import sys; sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    with pytest.raises(ValueError, match=r"^busy$"), locked(path, "busy"):
        pass
    child.communicate()
    with locked(path):
        pass
    hold(path, "busy")
    hold(tmp_path / "." / "lock", "busy")  # it is this process's
    with pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)


def test_work_goes_on_with_the_settings_that_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert resume(path, {"beam": (4, 5), "name": "é"}) == {}
    before = path.read_bytes()
    assert resume(path, {"beam": [4, 5], "name": "é"}) == {}
    assert resume(path, {"beam": [4], "seed": 1}) == {"beam": ([4, 5], [4]), "seed": (None, 1), "name": ("é", None)}
    assert resume(path, {"beam": [4], "seed": 1}, older=True) == {"beam": ([4, 5], [4])}
    assert resume(path, {"beam": [4], "name": "e"}, free=["name"]) == {"beam": ([4, 5], [4])}
    assert path.read_bytes() == before
    assert resume(path, {"beam": [4, 5], "name": "e"}, free=["name"]) == {}
    assert resume(path, {"beam": [4, 5], "name": "e"}) == {}
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        resume(path, {})
    assert os.listdir(tmp_path) == ["settings.json"]
