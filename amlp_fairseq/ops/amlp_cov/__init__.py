"""Covariances of AMLP-Cov, Eq. 9 and 10."""

from amlp_fairseq.ops.amlp_cov.op import cross_covariance

__all__ = ["cross_covariance"]
