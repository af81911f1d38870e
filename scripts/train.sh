#!/usr/bin/env bash
# Trains a row of a paper's table at a scale: bash scripts/train.sh DATA --row ROW --scale SCALE … (--help says more)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe train "$@"
