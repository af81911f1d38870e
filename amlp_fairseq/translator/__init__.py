"""From raw text to translations with the folder of a model: texts, files, shards. Imports up to ``tasks``."""

from amlp_fairseq import plugin  # noqa: F401  isort: skip - what it registers is imported below
from amlp_fairseq.translator.translator import Part, Translation, Translator

__all__ = ["Part", "Translation", "Translator"]
