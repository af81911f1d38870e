#!/usr/bin/env bash
# Lint, types and tests, in the environment that scripts/install.sh makes.
#   usage: bash scripts/test.sh [--full] [FILE …] [-- PYTEST_OPTION …]
# Without FILEs the fast tests, which take about three minutes on two cores; --full adds the slow ones, which start
# processes and train (CI runs this). With FILEs or folders all tests in them. For those that take hours: test_long.sh.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
selected="not slow and not long"
for word; do
  case $word in
    -h | --help) header; exit ;;
    --) break ;;
    --full) selected="not long" ;;
    -*) die "unknown argument: $word; options of pytest stand behind -- (bash $0 --help)" ;;
    *) [[ -e ${word%%::*} ]] || die "there is no file $root/${word%%::*}"; selected="not long" ;;
  esac
done
words=()
for word; do [[ $word == -- || $word == --full ]] || words+=("$word"); done
bash scripts/install.sh
ruff check .
ruff format --check .
mypy
# After a crash pytest-xdist's loadgroup can wait for ever (its issues 1323, 1378): end there, and where a test does.
limit=(-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true)
OMP_NUM_THREADS=1 pytest -n 2 --max-worker-restart 0 --dist loadgroup "${limit[@]}" -m "$selected" ${words[@]+"${words[@]}"}
