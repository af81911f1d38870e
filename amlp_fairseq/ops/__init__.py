"""Operators on tensors, independent of fairseq."""
