"""The command ``amlp-fairseq``."""
