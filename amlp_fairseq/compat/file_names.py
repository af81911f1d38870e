"""Names of data files that a shell would read as commands."""

from __future__ import annotations

import functools
import shlex
from typing import Any

from fairseq.data.fasta_dataset import FastaDataset


def install() -> None:
    """Quote the name of a FASTA file, for fairseq counts its lines in a shell. It finds such files, and the languages
    in their names, by itself: a folder of data with a file ``train.$(command)-x.$(command).fasta`` ran the command."""
    build_index = FastaDataset._build_index

    @functools.wraps(build_index)
    def build_index_quoted(self: FastaDataset, path: str) -> Any:
        return build_index(self, shlex.quote(path))

    FastaDataset._build_index = build_index_quoted
