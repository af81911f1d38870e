"""Names of data files that a shell would read as commands."""

from __future__ import annotations

import shlex
from typing import Any

from fairseq.data.fasta_dataset import FastaDataset


def quote(build_index: Any, self: FastaDataset, path: str) -> Any:
    """Quote the name of a FASTA file, for fairseq counts its lines in a shell. It finds such files, and the languages
    in their names, by itself: a folder of data with a file ``train.$(command)-x.$(command).fasta`` ran the command."""
    return build_index(self, shlex.quote(path))
