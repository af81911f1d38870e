#!/usr/bin/env bash
# Installs, makes the embedded corpus, trains an autoregressive Transformer and an IBDecoder on it, decodes both with
# fairseq-generate and prints a table. Under 10 minutes on 2 CPU cores.
#   usage: bash scripts/quickstart.sh
# Everything is written to work/quickstart, which a later run makes anew. The settings of scripts/install.sh hold here,
# too: WHEELS=FOLDER needs no compiler.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
no_arguments "$@"
work=$root/work/quickstart
if [[ -e $work && ! -f $work/made_by_quickstart ]]; then
  die "$work was not made by this script (it has no file made_by_quickstart): move it away, or remove it"
fi
bash "$root/scripts/install.sh"

rm -rf "$work"
mkdir -p "$work"
touch "$work/made_by_quickstart"
run amlp-fairseq prepare embedded "$work/data" > /dev/null
for row in transformer ibdecoder; do
  run amlp-fairseq train "$work/data/data-bin" --row "$row" --scale embedded --save-dir "$work/$row" --cpu > "$work/$row.log"
  run amlp-fairseq evaluate "$work/$row" "$work/data/data-bin" --results "$work/results.jsonl" --cpu > /dev/null
done
amlp-fairseq tables "$work/results.jsonl"
