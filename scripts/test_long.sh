#!/usr/bin/env bash
# The tests that take minutes or hours (marked long), all or a part of them. docs/results/test_long.txt has the last
# result of each, with the commit that it is of; also those of a run that is stopped in the middle. With
# FAIRSEQ_CHECKOUT=FOLDER, a clone of fairseq, its own tests are among them (scripts/fairseq_tests.sh).
#   usage: bash scripts/test_long.sh [PYTEST_ARGUMENT …]      (bash scripts/test_long.sh -k "interactive and cmlmc")
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [[ ${1-} == -h || ${1-} == --help ]]; then header; exit; fi
cd "$root"
bash scripts/install.sh
if ! command -v aarch64-linux-gnu-g++ > /dev/null || ! command -v qemu-aarch64 > /dev/null; then
  { apt-get update && apt-get install -y --no-install-recommends g++-aarch64-linux-gnu qemu-user; } > /dev/null 2>&1 ||
    echo "test_long: no cross compiler or emulator can be installed: the engine's tests for aarch64 are skipped" >&2
fi
results=docs/results/test_long.txt
folder=$(mktemp -d)
export OMP_NUM_THREADS=1
pytest -m long --collect-only -q tests | grep -a :: > "$folder/tests"
commit=$(git describe --always --abbrev=12 --exclude='*' --dirty=+changes)

# The lines of pytest -v, with workers "[gw0] [ 50%] PASSED tests/…", without "tests/… PASSED [ 50%]".
said() {
  sed -nE -e "s/^\[gw[0-9]+\] \[ *[0-9]+%\] (PASSED|FAILED|ERROR|SKIPPED) ([^ ].*[^ ]) *$/\1 $commit \2/p" \
    -e "s/^(tests[^ ]*::.*) (PASSED|FAILED|ERROR|SKIPPED)( .*)?$/\2 $commit \1/p" "$folder/log" | tac
}

# Of each test that there is the newest line.
write_results() {
  [[ -s $folder/log ]] || return 0
  { said; [[ ! -e $results ]] || grep -aE '^(PASSED|FAILED|ERROR|SKIPPED) ' "$results" || true; } | sort -us -k3 |
    awk 'NR == FNR { known[$0]; next } { name = $0; sub(/^[^ ]+ [^ ]+ /, "", name) } name in known' "$folder/tests" - \
    > "$folder/lines"
  {
    python -c 'from amlp_fairseq.training.environment import environment; print(environment())'
    echo "$(wc -l < "$folder/lines") of $(wc -l < "$folder/tests") long tests have run, $(grep -c ^PASSED "$folder/lines") passed"
    cat "$folder/lines"
  } > "$folder/results"
  mv "$folder/results" "$results"
  rm -r "$folder"
}
trap write_results EXIT

status=0
python -u -m pytest -m long -n 2 -v --color=no tests "$@" | tee -i "$folder/log" || status=$?
exit "$status"
