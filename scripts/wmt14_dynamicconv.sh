#!/usr/bin/env bash
# From download to Tables 1, 3 and 6 of the DynamicConv paper, of three seeds, at the paper's size, on all GPUs of this machine.
#   usage: bash scripts/wmt14_dynamicconv.sh [--dry-run] [--scale SCALE] [OPTION …]
# --dry-run prints every command, --scale embedded runs the same in minutes on a CPU. OPTIONs are those of
# amlp-fairseq reproduce and fairseq-train. A run that was stopped goes on. docs/recipes.md says more.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
paper dynamicconv "--seeds 1 2 3" wmt14_en_de wmt14_en_fr -- "$@"
