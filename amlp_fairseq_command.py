"""The command amlp-fairseq: what is missing, and Ctrl-C while everything is imported, end it without a traceback.

Not in the package, whose import fails where fairseq is missing.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # not where nohup has turned it off
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from amlp_fairseq.cli.main import main as command
    except ImportError as error:
        # Raised by compat/versions.py and compat/fairseq_present.py; any other is a bug, with a traceback.
        if error.name not in ("Python", "torch", "numpy", "fairseq"):
            raise
        sys.exit(f"amlp-fairseq: {error}")
    signal.signal(signal.SIGINT, interrupt)
    command()
