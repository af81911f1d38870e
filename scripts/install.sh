#!/usr/bin/env bash
# Creates .venv beside this folder and installs amlp-fairseq with everything its scripts need (CPU build of torch).
#   usage: bash scripts/install.sh
# PYTHON names the interpreter (default python3). Does nothing when .venv already holds this version of the recipe.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
torch=2.13.0
recipe=$(cat setup.py pyproject.toml scripts/install.sh scripts/fairseq.txt | sha256sum)
if [[ -f .venv/recipe && $(<.venv/recipe) == "$recipe" ]]; then exit 0; fi

"$python" -c 'import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit(f"install: Python 3.10, 3.11 or 3.12 is needed, {sys.executable} is {sys.version.split()[0]}; set PYTHON")'
command -v g++ >/dev/null || { echo "install: a C++ compiler is needed to build fairseq (g++)" >&2; exit 1; }

rm -rf .venv
"$python" -m venv .venv
pip() { .venv/bin/python -m pip install -q --disable-pip-version-check "$@"; }
# A CPU wheel that the user's own pip settings can reach comes first, then PyTorch's index: PyPI's wheel brings CUDA.
pip "torch==$torch+cpu" 2>/dev/null || pip "torch==$torch" --index-url https://download.pytorch.org/whl/cpu
# Without build isolation fairseq's extensions are compiled against this torch, and no second one is downloaded.
pip "setuptools>=77,<82" wheel cython numpy
MAX_JOBS=$(nproc) CFLAGS="${CFLAGS:--O1 -g0}" pip --no-build-isolation --no-deps --require-hashes -r scripts/fairseq.txt
pip --no-build-isolation -e ".[fairseq,test,bench]"
echo "$recipe" > .venv/recipe
