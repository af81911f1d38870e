#!/usr/bin/env bash
# Lint, types and the whole test suite, in the environment that scripts/install.sh makes.
#   usage: bash scripts/test.sh [FILE …] [-- PYTEST_OPTION …]
# With FILEs or folders only their tests are run.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
for word; do
  case $word in
    -h | --help) header; exit ;;
    --) break ;;
    -*) die "unknown argument: $word; options of pytest stand behind -- (bash $0 --help)" ;;
    *) [[ -e ${word%%::*} ]] || die "there is no file $root/${word%%::*}" ;;
  esac
done
words=()
for word; do [[ $word == -- ]] || words+=("$word"); done
bash scripts/install.sh
ruff check .
ruff format --check .
mypy
# After a crash pytest-xdist's loadgroup can wait for ever (its issues 1323, 1378): end there.
OMP_NUM_THREADS=1 pytest -n 2 --max-worker-restart 0 --dist loadgroup ${words[@]+"${words[@]}"}
