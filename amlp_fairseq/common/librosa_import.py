"""librosa, imported by one process at a time: numba writes what it compiles of a ``guvectorize`` to two files of its
cache, one after the other, so that processes that compile at once can leave two files that do not belong together, and
every later process crashes (numba issue 10128)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType

from amlp_fairseq.common.files import locked


def import_librosa() -> ModuleType:
    """librosa, with its compiled modules loaded.

    Raises:
        ImportError: if it is not installed.
    """
    with locked(Path(tempfile.gettempdir()) / f"librosa-{os.getuid()}.lock"):
        import librosa
        from librosa.core import audio, pitch  # noqa: F401  what they and librosa.util import is compiled now
    return librosa
