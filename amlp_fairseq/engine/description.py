"""Descriptions of models, of which the engine builds them: ``models/description.py`` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The key of a folder's config.json.
KEY = "description"
#: The version of what ``models/description.py`` writes; the engine builds models of this version.
VERSION = 1
#: ``kind`` of decoders that write all words of a sentence at a time; others have none.
PARALLEL = "parallel"


class UnsupportedError(ValueError):
    """A model or an option that the engine does not have; PyTorch decodes instead."""


def read(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description of a model folder's model.

    Args:
        config: its ``config.json``.

    Raises:
        UnsupportedError: naming what the engine does not have.
    """
    description: Mapping[str, Any] = config.get(KEY) or {}
    if reason := description.get("unsupported"):
        raise UnsupportedError(reason)
    if description.get("version") != VERSION:
        raise UnsupportedError(
            "the folder was made by another version of amlp-fairseq (amlp-fairseq package makes one anew)"
        )
    return description
