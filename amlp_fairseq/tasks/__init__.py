"""Tasks."""

from amlp_fairseq.tasks import translation_interleaved  # noqa: F401
