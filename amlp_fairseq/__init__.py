"""Fast-decoding machine translation for fairseq.

Importing registers tasks, models and architectures, lets fairseq's own checkpoints load safely, and mends what breaks
fairseq on current numpy. It prints nothing and touches no device.
"""

from amlp_fairseq import compat

compat.install()

# --user-dir scans models/ and tasks/ only when the package is not imported yet: register everything here.
from amlp_fairseq import models, tasks  # noqa: E402, F401
