#!/usr/bin/env bash
# Averages, decodes and scores: bash scripts/evaluate.sh CHECKPOINTS DATA … (--help says more)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe evaluate "$@"
