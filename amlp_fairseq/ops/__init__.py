"""Operators on tensors: they know nothing of fairseq."""
