"""What results are measured on: the processor, and the state of the repository."""

import platform
import re
import subprocess
from pathlib import Path


def processor() -> str:
    """The name of the CPU."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return model.group(1) if model else platform.machine()


def commit() -> tuple[str, bool]:
    """The commit that is checked out, and whether there may be changes; ``unknown`` outside of a repository."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    return git("rev-parse", "HEAD") or "unknown", git("status", "--porcelain") != ""
