#!/usr/bin/env bash
# The tests on Python 3.10, 3.11 and 3.12, with the oldest and the newest torch.
#   usage: bash scripts/test_matrix.sh [-s SESSION …] [-- PYTEST_ARGUMENT …]      (bash scripts/test_matrix.sh --list)
# Environments are made in .matrix; PyPI's torch brings CUDA, 6 GB for each of the two.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [[ ${1-} == -h || ${1-} == --help ]]; then header; exit; fi
cd "$root"
if [[ ! -x .matrix/tools/bin/nox ]]; then
  python3 -m venv .matrix/tools
  .matrix/tools/bin/python -m pip install -q --disable-pip-version-check "nox>=2026,<2027" "uv>=0.9"
fi
for bin in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[012].*/bin; do PATH=$PATH:$bin; done
PATH=$PWD/.matrix/tools/bin:$PATH UV_CACHE_DIR=$PWD/.matrix/cache exec nox -f scripts/noxfile.py --envdir "$PWD/.matrix/environments" "$@"
