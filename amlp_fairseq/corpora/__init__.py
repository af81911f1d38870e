"""Data folders from public corpora, texts of one's own and generated text. Imports up to ``training``."""

from amlp_fairseq import plugin  # noqa: F401
