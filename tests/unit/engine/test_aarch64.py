"""The engine for aarch64, cross-compiled and run by qemu-user: kernels.cpp beside plain double arithmetic."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import commands
import pybind11
import pytest

from amlp_fairseq.engine import isa

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SOURCES = commands.ROOT / "amlp_fairseq/engine/src"
#: The instruction sets of aarch64, each with qemu's processors and whether it runs on them.
NAMES = {
    "generic": {"cortex-a53": True},
    "neon": {"cortex-a53": True, "max": True},
    "neon_dotprod": {"cortex-a53": False, "max": True},  # the first has no dot product
}


@pytest.mark.parametrize(
    ("machine", "line", "expected"),
    [
        ("aarch64", "Features\t: fp asimd asimddp", ["neon_dotprod", "neon", "generic"]),
        ("aarch64", "Features\t: fp asimd", ["neon", "generic"]),
        ("x86_64", "flags\t\t: avx2 fma f16c", ["avx2", "generic"]),
        ("riscv64", "flags\t\t: avx2 fma f16c", ["generic"]),
    ],
)
def test_the_instruction_sets_of_a_processor(
    machine: str, line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa.platform, "machine", lambda: machine)
    monkeypatch.setattr(isa.Path, "read_text", lambda *_, **__: f"processor\t: 0\n{line}\n")
    assert isa.supported() == expected


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_kernels(name: str, tmp_path: Path) -> None:
    for program in (COMPILER, EMULATOR):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} (Debian: apt-get install g++-aarch64-linux-gnu qemu-user)")
    options = [COMPILER, "-std=c++20", *isa.FLAGS, *isa.ISAS[name][0], "-DAMLP_SOURCES=1", f"-I{SOURCES}"]
    options += [f"-I{sysconfig.get_paths()['include']}", f"-I{pybind11.get_include()}"]
    # Of the module only the object: there is no Python of aarch64 to link it to.
    module = [SOURCES / f"{name}.cpp", "-fPIC", "-fvisibility=hidden", "-c", "-o", tmp_path / "module.o"]
    subprocess.run([*options, *module], check=True)
    kernels = "NEON" if name.startswith("neon") else "GENERIC"
    program = [f"-D{kernels}", "-static", Path(__file__).with_name("kernels.cpp"), "-o", tmp_path / "kernels"]
    subprocess.run([*options, *program], check=True)
    for processor, runs in NAMES[name].items():
        done = subprocess.run([EMULATOR, "-cpu", processor, tmp_path / "kernels"], capture_output=True, text=True)
        assert (done.returncode == 0) == runs, done.stdout
        assert "is wrong" not in done.stdout
