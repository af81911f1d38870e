"""Packages and C++ of amlp-fairseq; everything else is in pyproject.toml. The configurations are installed with it."""

import os
import platform
import runpy
import sys
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext

#: GCC 12 warns of its own headers for AVX-512; Clang does not know the warning.
QUIET = ["-Wno-unknown-warning-option", "-Wno-maybe-uninitialized"]
CONFIGS = [f"amlp_fairseq.configs{part}" for part in ("", ".rows", ".data", ".scale")]
ENGINE = Path("amlp_fairseq/engine")
ISA = runpy.run_path(str(ENGINE / "isa.py"))
if missing := ISA["MISSING"].get(platform.system()):
    print(f"amlp-fairseq: {missing}; PyTorch decodes", file=sys.stderr)  # noqa: T201


class ParallelBuild(build_ext):
    """The libraries of the instruction sets are compiled side by side."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()


setup(
    packages=[*find_packages(include=["amlp_fairseq", "amlp_fairseq.*"]), *CONFIGS],
    package_dir={"amlp_fairseq.configs": "configs"},
    package_data={
        "amlp_fairseq": ["py.typed", "corpora/*.yaml", "*/*.html"],
        **{name: ["*.yaml"] for name in CONFIGS},
    },
    # A library for each instruction set, or for AMLP_FAIRSEQ_ISA. Where one cannot be compiled, PyTorch decodes.
    ext_modules=[
        Pybind11Extension(
            f"amlp_fairseq.engine._{name}",
            [str(ENGINE / "src" / f"{name}.cpp")],
            depends=sorted(map(str, ENGINE.glob("src/*"))),  # source distributions have those of other processors, too
            cxx_std=20,
            extra_compile_args=[*ISA["FLAGS"], *QUIET, *options, f"-DAMLP_SOURCES={ISA['sources']()}"],
            optional=True,
        )
        for name, (options, _) in ISA["ISAS"].items()
        if ISA["compiled"](name) and os.environ.get("AMLP_FAIRSEQ_ISA", name) == name
    ],
    cmdclass={"build_ext": ParallelBuild},
)
