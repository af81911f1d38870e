#!/usr/bin/env bash
# Lint, types and the whole test suite, in the environment that scripts/install.sh makes.
#   usage: bash scripts/test.sh [PYTEST_ARGUMENT …]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/install.sh
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
ruff check .
ruff format --check .
mypy
OMP_NUM_THREADS=1 pytest -n 2 --dist loadgroup "$@"
