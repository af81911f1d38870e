"""Fast-decoding machine translation for fairseq.

Importing registers tasks, models and architectures, lets fairseq's own checkpoints load safely, and mends what breaks
fairseq on current numpy. It prints nothing and touches no device.
"""

import warnings
from typing import TYPE_CHECKING

from amlp_fairseq.quick_imports import quick_imports

# Python 3.12 names bad escapes of fairseq when it compiles them: always, where it may not keep what it compiles.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=r".*[/\\]fairseq[/\\]")
with quick_imports(), warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")  # fairseq uses it; torch 2.14 warns
    from amlp_fairseq import compat

    compat.install()

    # --user-dir scans models/ and tasks/ only when the package is not imported yet: register everything here.
    from amlp_fairseq import criterions, models, tasks  # noqa: F401


__all__ = ["Translation", "Translator"]

if TYPE_CHECKING:
    from amlp_fairseq.translator import Translation, Translator
else:

    def __getattr__(name: str) -> object:
        """What is imported when it is first asked for: commands that train do not need it."""
        if name in __all__:
            from amlp_fairseq import translator

            return getattr(translator, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
