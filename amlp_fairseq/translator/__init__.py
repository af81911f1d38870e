"""From raw text to translations with the folder of a model: texts, files, shards. Imports up to ``tasks``, and
PyTorch where it decodes: ``pytorch_backend.py``."""

from amlp_fairseq.translator.texts import Part, Partial, Translation
from amlp_fairseq.translator.translator import Score, Translator

__all__ = ["Part", "Partial", "Score", "Translation", "Translator"]
