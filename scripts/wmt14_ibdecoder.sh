#!/usr/bin/env bash
# From download to Tables 1 to 5 of the IBDecoder paper, and the WMT14 column of Table 6, at the paper's size, on all GPUs of this machine.
#   usage: bash scripts/wmt14_ibdecoder.sh [--dry-run] [--scale SCALE] [OPTION …]
# --dry-run prints every command, --scale embedded runs the same in minutes on a CPU. OPTIONs are those of
# amlp-fairseq reproduce and fairseq-train. A run that was stopped goes on. docs/recipes.md says more.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
paper ibdecoder "" wmt14_en_de wmt14_en_fr -- "$@"
