"""The choice of AMX, and that its library has it. No machine that this was written on had AMX."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from importlib.util import find_spec

import pytest

from amlp_fairseq.engine import isa

FLAGS = isa.ISAS["amx"][1]


@pytest.mark.parametrize(
    ("flags", "granted", "expected"),
    [
        (FLAGS, True, "amx"),
        (FLAGS, False, "avx512_bf16"),
        (FLAGS - {"amx_bf16"}, True, "avx512_bf16"),
        (FLAGS - {"amx_int8"}, True, "avx512_bf16"),
        (FLAGS - {"amx_tile"}, True, "avx512_bf16"),
    ],
)
def test_amx_is_taken_if_processor_and_kernel_have_it(
    flags: frozenset[str], granted: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "processor_flags", lambda: flags)
    monkeypatch.setattr(isa, "tiles_granted", lambda: granted)
    assert isa.supported()[0] == expected


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64" or "amx_tile" in isa.processor_flags(),
    reason="Linux on an x86-64 processor without AMX",
)
def test_the_kernel_grants_no_tiles_that_the_processor_lacks() -> None:
    assert not isa.tiles_granted()


def test_the_library_has_the_instructions() -> None:
    spec = find_spec("amlp_fairseq.engine._amx")
    if spec is None or spec.origin is None or shutil.which("objdump") is None:
        pytest.skip("no library for AMX, or no objdump")
    command = ["objdump", "-d", "--no-show-raw-insn", spec.origin]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"\t((?:ldtile|tile|tdp)\w+)", code))
    assert found == {"ldtilecfg", "tilerelease", "tileloadd", "tilestored", "tdpbusd", "tdpbf16ps"}
