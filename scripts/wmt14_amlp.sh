#!/usr/bin/env bash
# From download to Table 3 of the AMLP paper, both directions, at the paper's size, on all GPUs of this machine.
#   usage: bash scripts/wmt14_amlp.sh [--dry-run] [--scale SCALE] [OPTION …]
# --dry-run prints every command, --scale embedded runs the same in minutes on a CPU. OPTIONs are those of
# amlp-fairseq reproduce and fairseq-train. A run that was stopped goes on. docs/recipes.md says more.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
paper "amlp 3" "" wmt14_en_de wmt14_de_en -- "$@"
