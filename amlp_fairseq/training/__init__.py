"""Rows and scales, data folders, training, averaging and distillation. Imports up to ``translator``."""
