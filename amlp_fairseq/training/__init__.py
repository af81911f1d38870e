"""Rows and scales, data folders, training, averaging and distillation. Imports up to ``translator``."""

from amlp_fairseq import plugin  # noqa: F401
