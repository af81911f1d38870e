"""Archives of models, ``from_pretrained("model.tar.gz")``: unpacked into their own folder and nowhere else."""

from __future__ import annotations

import os
import tarfile
import types
from pathlib import PurePosixPath
from typing import Any


def open_archive(path: str, mode: str) -> tarfile.TarFile:
    """``tarfile.open`` that unpacks data alone, into the folder that it is told.

    Raises:
        ValueError: here or when it unpacks, naming the archive.
    """

    def checked(member: tarfile.TarInfo, folder: str) -> Any:
        try:
            return tarfile.data_filter(member, folder)
        except tarfile.FilterError as error:
            raise ValueError(f"{path} is refused: {error}") from None

    archive = tarfile.open(path, mode)  # type: ignore[call-overload]  # noqa: SIM115
    top = os.path.commonprefix(archive.getnames())  # noqa: RUF071, as fairseq does
    if os.path.isabs(top) or ".." in PurePosixPath(top).parts:
        archive.close()
        raise ValueError(f"{path} is refused: its files are in {top!r}, which is outside the destination")
    archive.extraction_filter = checked
    return archive


#: In the place of the module that fairseq unpacks with: it unpacks whatever path a file has, and then moves what it
#: takes for the top folder, which may be one of the user's.
TARFILE = types.SimpleNamespace(open=open_archive)
