"""The folder of a model: its format, and how fairseq reads it as a checkpoint. Imports ``common`` and ``compat``."""
