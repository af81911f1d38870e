"""Files: checksums, locks, what is there whole or not at all, and work that goes on with the settings that it began
with."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

#: Error text for a folder that another process has locked.
IN_USE = "another run, or a process that it has left, is using"


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files in a folder, by their names, which are sorted."""
    return {name: sha256(folder / name) for name in sorted(names)}


@contextmanager
def whole(*paths: Path, unique: bool = False) -> Iterator[list[Path]]:
    """Yield names beside paths, under which files or folders are to be written: they get the paths' names together if
    the block ends without an error, and are removed otherwise.

    Args:
        unique: choose hidden names that no other process chooses, for paths that several may write.
    """
    parts = [
        path.with_name(f".{path.name}.{uuid.uuid4().hex}.part" if unique else f"{path.name}.part") for path in paths
    ]
    for part in parts:  # of a process that was killed
        _remove(part)
    try:
        with naming(paths[0]):
            yield parts
        for part, path in zip(parts, paths, strict=True):
            part.replace(path)
    finally:
        for part in parts:
            _remove(part)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let the error of a write, as to a full disk, name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in (None, errno.EPIPE):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def remove_parts(path: Path) -> None:
    """Remove what processes that were killed have left of a path under ``unique`` names."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.part"):
        _remove(part)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def writing(*paths: Path, unique: bool = False) -> Iterator[list[TextIO]]:
    """Open text files that are there whole or not at all, see :func:`whole`."""
    with whole(*paths, unique=unique) as parts, ExitStack() as stack:
        files: list[TextIO] = [stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")) for part in parts]
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def line_by_line(path: Path) -> Iterator[TextIO]:
    """Open a text file into which each line is written at once."""
    with naming(path), path.open("w", encoding="utf-8", buffering=1) as file:
        yield file


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[IO[str]]:
    """Hold the lock of a file. Processes that inherit the open file (``pass_fds``) hold it, too, until they end.

    Args:
        busy: what is wrong if another process holds it; None: wait for that one.

    Raises:
        ValueError: with this message.
    """
    with _lock(path, busy) as file:
        yield file


def hold(path: Path, busy: str) -> None:
    """Hold the lock of a file until this process ends, however it ends. Its forks do not hold it: workers that load
    data live some seconds longer than a training that is killed.

    Raises:
        ValueError: as ``locked``.
    """
    path = path.resolve()
    if path not in _held:
        _held[path] = _lock(path, busy)


_held: dict[Path, IO[str]] = {}


def _let_go() -> None:
    """Close the locked files in a fork, which leaves the locks to the parent."""
    for file in _held.values():
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _lock(path: Path, busy: str | None) -> IO[str]:
    file = open(path, "w")  # noqa: SIM115 - whoever gets it closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        raise ValueError(busy) from None
    return file


def resume(
    path: Path, settings: Mapping[str, Any], free: Collection[str] = (), older: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Settings of work that can be interrupted: they are written when it begins, and compared when it goes on.

    Args:
        path: of their file.
        settings: of this run, by name.
        free: names of settings that may still change, for nothing has been made with them.
        older: take a setting that this run or the file does not have for one of another version, and do not compare it.

    Returns:
        the settings that differ, as they were and as they are (None where there is none), by name.

    Raises:
        ValueError: naming a file that is damaged.
    """
    settings = json.loads(json.dumps(settings))
    if not path.exists():
        with writing(path, unique=True) as (file,):
            json.dump(settings, file, indent=1)
    try:
        begun = dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    changed = {
        name: (begun.get(name), settings.get(name))
        for name in dict.fromkeys([*settings, *begun])
        if name not in free and begun.get(name) != settings.get(name)
        if not older or (name in begun and name in settings)
    }
    current = begun | {name: settings[name] for name in free if name in settings}
    if not changed and current != begun:
        with writing(path, unique=True) as (file,):
            json.dump(current, file, indent=1)
    return changed
