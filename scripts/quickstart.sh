#!/usr/bin/env bash
# Installs, makes the embedded corpus, trains an autoregressive Transformer and an IBDecoder on it, decodes both with
# fairseq-generate and prints a table. Under 10 minutes on 2 CPU cores.
#   usage: bash scripts/quickstart.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[[ $# == 0 ]] || { sed -n '2,4s/^# //p' "$0"; [[ $1 == --help || $1 == -h ]]; exit; }
bash "$root/scripts/install.sh"

work=$root/work/quickstart
rm -rf "$work"
run amlp-fairseq prepare embedded "$work/data" > /dev/null
for row in transformer ibdecoder; do
  run amlp-fairseq train "$work/data/data-bin" --row "$row" --scale embedded --save-dir "$work/$row" --cpu > "$work/$row.log"
  run amlp-fairseq evaluate "$work/$row" "$work/data/data-bin" --results "$work/results.jsonl" --cpu > /dev/null
done
amlp-fairseq tables "$work/results.jsonl"
