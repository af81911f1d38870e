"""Criteria."""

from amlp_fairseq.criterions import adaptive_nll_loss, fertility_nat_loss  # noqa: F401
