"""Fast-decoding machine translation for fairseq.

Importing it has no effect, and needs neither torch nor fairseq: what it names is imported when it is asked for. Where
fairseq has been imported before, as by its ``--user-dir``, the plugin is installed (``plugin.py``).
"""

import sys
from typing import TYPE_CHECKING

__all__ = ["Translation", "Translator"]

if TYPE_CHECKING:
    from amlp_fairseq.translator import Translation, Translator
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            from amlp_fairseq import translator

            return getattr(translator, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


if sys.modules.get("fairseq") is not None:
    from amlp_fairseq import plugin  # noqa: F401
