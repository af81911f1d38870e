"""The import of fairseq: without one that can be imported, one line says what to install; what it leaves out, against
scikit-learn's and scipy's own functions."""

from __future__ import annotations

import json
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


PROGRAM = """
import gc, json, sys
{before}
import amlp_fairseq.plugin
imported = {{"sklearn", "scipy.stats", "sacremoses", "amlp_fairseq.translator"}} & {{*sys.modules}}
facts = {{"collects": gc.isenabled(), "imported": sorted(imported)}}
from fairseq.criterions import sentence_prediction
from fairseq.tasks.audio_classification import sklearn_metrics
import numpy as np
labels, predictions = np.array([0, 1, 1, 0, 1, 1]), np.array([0, 1, 0, 1, 1, 1])
facts["f1"] = sentence_prediction.acc_and_f1(predictions, labels)["f1"]
facts["pearson"] = sentence_prediction.pearson_and_spearman(labels, predictions)["pearson"]
facts["roc"] = [list(map(float, part)) for part in sklearn_metrics.roc_curve(labels, predictions)[:2]]
import scipy.stats, sklearn.metrics
facts["real"] = [sklearn.metrics.f1_score(labels, predictions), scipy.stats.pearsonr(labels, predictions)[0]]
print(json.dumps(facts))
"""


def facts(before: str = "") -> dict[str, object]:
    return dict(json.loads(commands.fresh(sys.executable, "-c", PROGRAM.format(before=before)).stdout.splitlines()[-1]))


def test_functions_of_other_tasks_are_imported_when_they_are_called() -> None:
    got = facts()
    assert (got["collects"], got["imported"]) == (True, [])
    assert got["real"] == [got["f1"], got["pearson"]]
    assert got["f1"] == pytest.approx(0.75)  # 3 of 4 found, 3 of 4 right
    assert got["roc"] == [[0, 0.5, 1], [0, 0.75, 1]]


def test_what_is_imported_before_stays() -> None:
    got = facts("import sklearn.metrics\ngc.disable()")
    assert got["collects"] is False
    assert "sklearn" in got["imported"]  # type: ignore[operator]
    assert got["real"] == [got["f1"], got["pearson"]]
