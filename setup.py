"""Packages of amlp-fairseq; everything else is in pyproject.toml. The configurations are installed with the package."""

from setuptools import find_packages, setup

CONFIGS = [f"amlp_fairseq.configs{part}" for part in ("", ".rows", ".data", ".scale")]

setup(
    packages=[*find_packages(include=["amlp_fairseq", "amlp_fairseq.*"]), *CONFIGS],
    package_dir={"amlp_fairseq.configs": "configs"},
    package_data={
        "amlp_fairseq": ["py.typed", "corpora/*.yaml", "*/*.html", "ops/*/*.cpp", "ops/*/*.h"],
        **{name: ["*.yaml"] for name in CONFIGS},
    },
)
