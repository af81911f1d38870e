"""Without a fairseq that can be imported, one line says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import commands
import pytest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "amlp_fairseq needs fairseq, which is not installed: pip install"),
        (
            "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    a: list = []\n",
            "this fairseq cannot be imported on Python {version} (mutable default",
        ),
        ("import no_such_module\n", "No module named 'no_such_module'"),
    ],
)
def test_the_error_says_what_to_install(tmp_path: Path, content: str | None, message: str) -> None:
    """None: no fairseq; the second is what PyPI's fairseq does on Python 3.11; the third is not about fairseq."""
    program = "import amlp_fairseq.plugin"
    if content is None:
        program = (
            "import sys\n"
            "class Hide:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'fairseq':\n"
            "            raise ModuleNotFoundError(\"No module named 'fairseq'\", name='fairseq')\n"
            "sys.meta_path.insert(0, Hide())\n" + program
        )
    else:
        (tmp_path / "fairseq").mkdir()
        (tmp_path / "fairseq/__init__.py").write_text(content, encoding="utf-8")
    path = f"{tmp_path}:{commands.ROOT}"
    done = commands.fresh(sys.executable, "-c", program, cwd=tmp_path, env={"PYTHONPATH": path}, check=False)
    assert done.returncode == 1
    last = done.stdout.strip().splitlines()[-1]
    assert message.format(version=f"{sys.version_info[0]}.{sys.version_info[1]}") in last


def test_importing_leaves_logging_alone(tmp_path: Path) -> None:
    program = (
        "import logging; import amlp_fairseq.plugin; root = logging.getLogger();"
        "assert (root.handlers, root.level) == ([], logging.WARNING), (root.handlers, root.level);"
        "logging.basicConfig(format='mine %(message)s', level='INFO'); logging.info('seen')"
    )
    done = commands.fresh(sys.executable, "-c", program, cwd=tmp_path, env={"PYTHONPATH": str(commands.ROOT)})
    assert done.stdout.strip().splitlines()[-1] == "mine seen"
