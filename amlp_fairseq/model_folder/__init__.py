"""Model folders: the format, and reading one as a checkpoint of fairseq. Imports ``common`` and ``compat``."""
