"""Translation over HTTP. Imports up to ``translator``."""
