"""Distribution metadata of amlp-fairseq; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="amlp-fairseq",
    version="0.1.0",
    description="Fast-decoding machine translation for fairseq: interleaved bidirectional decoding and more",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["amlp_fairseq", "amlp_fairseq.*"]),
    package_data={"amlp_fairseq": ["py.typed"]},
    # The test suite runs on Python 3.11 with torch 2.13.0, triton 3.7.1, sacrebleu 2.6.0 and sentencepiece 0.2.3.
    # It has run on Python 3.12 with torch 2.11.0 and triton 3.6.0, which a CUDA host may have, without its trainings
    # (and with numpy < 2.4 for triton's interpreter); what starts no command, on Python 3.10, too.
    install_requires=[
        "fairseq-fixed>=0.12.3.1,<0.13",  # PyPI's `fairseq` cannot be imported on Python >= 3.11
        "torch>=2.11,<2.14",
        "sacrebleu>=2.6,<2.7",
        "sentencepiece>=0.2.3,<0.3",
        # torch 2.11 goes with triton 3.6, torch 2.13 with triton 3.7
        'triton>=3.6,<3.8; platform_system == "Linux" and platform_machine == "x86_64"',
    ],
    extras_require={
        "data": ["sacremoses==0.2.0", "subword-nmt==0.3.8"],  # scripts/prepare_*.sh and scripts/score.py
        "test": [
            "amlp-fairseq[data]",
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "hypothesis>=6.100,<7",
            "ruff==0.17.5",
            "mypy==2.4.1",
        ],
        "bench": ["matplotlib>=3.9,<4", "ctranslate2>=4.8,<5"],  # plots and a baseline of scripts/benchmark_*.py
    },
    entry_points={
        "console_scripts": [
            "amlp-average-checkpoints=amlp_fairseq.average_checkpoints:main",
        ]
    },
)
