#!/usr/bin/env bash
# fairseq's own tests, without the plugin and with it: which pass with one and fail with the other.
#   usage: bash scripts/fairseq_tests.sh CHECKOUT [TEST_FILE …]
# CHECKOUT is a clone of github.com/facebookresearch/fairseq, of which tests/ is taken; by default all files of tests/
# itself are run, with the fairseq that is installed. Status 1 where a test fails with the plugin alone.
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
cp -r "$checkout/tests" "$work/tests"
[[ ! -d $checkout/examples ]] || cp -r "$checkout/examples" "$work/examples"
cd "$work"
files=("$@")
((${#files[@]})) || files=(tests/test_*.py)
export OMP_NUM_THREADS=1 PYTHONPATH=$work:$root
for plugin in without with; do
  [[ $plugin == without ]] || printf 'import amlp_fairseq.plugin\n' > conftest.py
  python -m pytest -q -p no:cacheprovider -p no:xdist -rA --tb=no "${files[@]}" > "$plugin" 2> /dev/null || true
  sed -n 's/^PASSED //p' "$plugin" | sort > "$plugin.passed"
  echo "$plugin the plugin: $(tail -n 1 "$plugin")"
done
comm -13 with.passed without.passed > lost
comm -23 with.passed without.passed | sed 's/^/passes with the plugin alone: /'
sed 's/^/fails with the plugin alone: /' lost
[[ ! -s lost ]]
