"""The folder of a model: its format. Imports ``common`` and ``compat``."""
