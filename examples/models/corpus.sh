#!/usr/bin/env bash
# The corpus of the models of this folder: the embedded one, with capital letters and without spaces before punctuation.
#   usage: bash examples/models/corpus.sh OUT
# Writes OUT/raw (text) and OUT/data (binarised, 1000 sentencepieces) unless they are there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
source "$here/../../scripts/lib.sh"
if [[ $# == 1 && ($1 == -h || $1 == --help) ]]; then header; exit; fi
[[ $# == 1 && $1 && $1 != -* ]] || die "one folder is needed, got: ${*:-nothing} (bash $0 --help)"
mkdir -p "$1/raw"
cd "$1"
if [[ -f data/data-bin/text.json ]]; then exit; fi

run amlp-fairseq prepare embedded embedded > /dev/null
files=()
for part in train valid test; do
  files+=("--$part" "raw/$part.en" "raw/$part.de")
  for language in en de; do
    LC_ALL=C.UTF-8 sed -E 's/ ([.,?!])/\1/g; s/\bi\b/I/g; s/^./\U&/' "embedded/generated/$part.$language" > "raw/$part.$language"
  done
done
run amlp-fairseq prepare text data --vocab-size 1000 "${files[@]}" > /dev/null
