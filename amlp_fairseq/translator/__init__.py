"""From raw text to translations: a model as one folder, and what reads it."""

from amlp_fairseq.translator.translator import Part, Translation, Translator

__all__ = ["Part", "Translation", "Translator"]
