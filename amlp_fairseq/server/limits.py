"""Limits of requests to a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _limit(default: float, text: str) -> Any:  # of the field's type, as ``field``
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Limits:
    """Limits, each an option of ``amlp-fairseq serve``; times in seconds."""

    max_batch: int = _limit(64, "texts that are translated together")
    max_texts: int = _limit(128, "texts of a request")
    max_characters: int = _limit(10_000, "characters of a text")
    max_body: int = _limit(1 << 20, "bytes of a request")
    max_waiting: int = _limit(256, "requests that wait; 503 for further ones")
    timeout: float = _limit(60.0, "seconds that a request waits for its translations; then 504")
    read_timeout: float = _limit(10.0, "seconds in which a request has to arrive; then 408, or the connection ends")
