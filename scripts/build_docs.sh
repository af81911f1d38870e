#!/usr/bin/env bash
# Builds the site of docs/ into the folder OUT; OUT/index.html is its first page. Broken links are errors.
#   usage: bash scripts/build_docs.sh OUT
# Adds scripts/docs.txt (Sphinx) to the environment of scripts/install.sh. OUT is new, or a former site.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [[ $# == 1 && ($1 == -h || $1 == --help) ]]; then header; exit; fi
[[ $# == 1 && $1 && $1 != -* ]] || die "one folder is needed, got: ${*:-nothing} (bash $0 --help)"
out=$(realpath -m -- "$1")
if [[ -e $out && ! -f $out/.buildinfo ]]; then die "$out is not a site of this script: name a new folder, or remove it"; fi
bash "$root/scripts/install.sh"
"$root/.venv/bin/python" -m pip install -qq --disable-pip-version-check -r "$root/scripts/docs.txt"
doctrees=$(mktemp -d)
trap 'rm -rf "$doctrees"' EXIT
# -W: warnings, broken links among them, are errors. OMP: importing the package for docs/api.md needs one thread only.
OMP_NUM_THREADS=1 "$root/.venv/bin/python" -m sphinx -q -W --keep-going -c "$root/docs" -d "$doctrees" "$root" "$out"
printf '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html">\n' > "$out/index.html"
echo "$out/index.html"
