"""From a raw line to a model's tokens and back: languages, sentences, tokenizers, subwords. Imports ``common``."""
