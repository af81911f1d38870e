"""Tasks."""

from amlp_fairseq.tasks import translation_cmlmc, translation_interleaved  # noqa: F401
