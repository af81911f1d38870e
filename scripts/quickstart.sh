#!/usr/bin/env bash
# Installs, makes the embedded corpus, trains an autoregressive Transformer and an IBDecoder on it, decodes both with
# fairseq-generate and prints a table. Under 10 minutes on 2 CPU cores.
#   usage: bash scripts/quickstart.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bash "$root/scripts/install.sh"

work=$root/work/quickstart
rm -rf "$work"
run bash "$root/scripts/prepare_embedded.sh" "$work/data" > /dev/null
for row in transformer ibdecoder; do
  config=$root/configs/embedded/$row.yaml
  run bash "$root/scripts/train.sh" "$config" "$work/data/data-bin" --save-dir "$work/$row" --cpu > "$work/$row.log"
  run bash "$root/scripts/evaluate.sh" "$config" "$work/$row" "$work/data/data-bin" --results "$work/results.jsonl" \
    --cpu > /dev/null
done
python "$root/scripts/make_tables.py" "$work/results.jsonl"
