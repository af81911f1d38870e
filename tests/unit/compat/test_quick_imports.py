"""What importing the package leaves out, against scikit-learn's and scipy's own functions."""

from __future__ import annotations

import json
import sys

import commands
import pytest

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
