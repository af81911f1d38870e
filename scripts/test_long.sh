#!/usr/bin/env bash
# The tests that take minutes or hours (marked long), and docs/results/test_long.txt with what they said.
#   usage: bash scripts/test_long.sh [PYTEST_ARGUMENT …]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/install.sh
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
log=$(mktemp)
status=0
OMP_NUM_THREADS=1 pytest -m long -n 2 -rA --color=no "$@" tests/reliability | tee "$log" || status=$?
{
  python -c 'from amlp_fairseq.recipes.environment import environment; print(environment())'
  grep -E '^(PASSED|FAILED|ERROR) |^=+ .*(passed|failed).* =+$' "$log" | sort
} > docs/results/test_long.txt
exit "$status"
