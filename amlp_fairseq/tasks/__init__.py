"""fairseq tasks of the plugin."""

from amlp_fairseq.tasks import translation_cmlmc, translation_interleaved  # noqa: F401
