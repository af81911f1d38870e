"""Decoding test sets, scores, and the papers' tables. Imports up to ``corpora``."""

from amlp_fairseq import plugin  # noqa: F401
