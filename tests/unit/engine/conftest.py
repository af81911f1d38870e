"""The engine's libraries."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from amlp_fairseq.engine import isa


@pytest.fixture(params=[isa.library_isa()] if os.environ.get(isa.FORCED) else isa.supported())
def library(request: pytest.FixtureRequest) -> ModuleType:
    """The library of each instruction set of this processor, or of AMLP_FAIRSEQ_ISA alone."""
    return isa.load(request.param)
