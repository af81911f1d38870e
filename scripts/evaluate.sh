#!/usr/bin/env bash
# Averages, decodes and scores: scripts/evaluate.py says how.
#   usage: bash scripts/evaluate.sh CONFIG CHECKPOINTS DATA [--subset S] [--results FILE] [options of fairseq-generate]
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
exec python "$root/scripts/evaluate.py" "$@"
