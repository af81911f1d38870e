"""Decoding test sets, scores, and the papers' tables. Imports up to ``corpora``."""
