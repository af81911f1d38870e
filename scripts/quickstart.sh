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
for system in transformer ibdecoder; do
  bash "$root/scripts/embedded.sh" --system $system --work "$work" --results "$work/results.jsonl" > /dev/null
done
python "$root/scripts/results_table.py" "$work/results.jsonl"
