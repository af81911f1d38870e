"""Criteria."""

from amlp_fairseq.criterions import fertility_nat_loss  # noqa: F401
