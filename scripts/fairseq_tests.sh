#!/usr/bin/env bash
# fairseq's own tests, each file without the plugin and with it: how many pass, and which only without or only with it.
#   usage: bash scripts/fairseq_tests.sh CHECKOUT [TEST_FILE …] > docs/results/fairseq_tests.txt
# CHECKOUT is a clone of github.com/facebookresearch/fairseq, of which tests/ is taken, by default all files but those for
# GPUs; they run with the fairseq that is installed. Status 1 where a test fails with the plugin alone.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case ${1:-} in
  '' | -h | --help) header; exit ;;
esac
[[ -f $1/tests/test_binaries.py ]] || die "$1 has no tests/test_binaries.py: give a clone of fairseq (bash $0 --help)"
checkout=$(cd "$1" && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$checkout"/{tests,examples,scripts} "$work"
cd "$work"
files=("$@")
((${#files[@]})) || mapfile -t files < <(find tests -name 'test_*.py' -not -path 'tests/gpu/*' | sort)
export OMP_NUM_THREADS=1 PYTHONPATH=$work:$root

# The names of the tests of a file that pass: passing FILE [PYTEST_OPTION …].
passing() {
  python -m pytest -q -p no:cacheprovider -p no:xdist -rA --tb=no "${@:2}" "$1" > log 2> /dev/null || true
  tail -n 1 log | grep -qE ' in [0-9.]+s' || die "$*: pytest has crashed"
  sed -n 's/^PASSED //p' log | sort
}

without=0 with=0
: > alone
python -c 'from amlp_fairseq.training.environment import environment; print(environment())'
echo "passed without the plugin, passed with it, file"
for file in "${files[@]}"; do
  passing "$file" > stock
  passing "$file" -p amlp_fairseq.plugin > ours
  printf '%4d %4d %s\n' "$(wc -l < stock)" "$(wc -l < ours)" "$file"
  without=$((without + $(wc -l < stock))) with=$((with + $(wc -l < ours)))
  comm -23 ours stock | sed 's/^/passes with the plugin alone: /' >> alone
  comm -13 ours stock | sed 's/^/fails with the plugin alone: /' >> alone
done
printf '%4d %4d %s\n' "$without" "$with" "in all"
cat alone
! grep -q '^fails' alone
