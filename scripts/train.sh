#!/usr/bin/env bash
# Trains a configuration: scripts/train.py says how.
#   usage: bash scripts/train.sh CONFIG DATA [--save-dir DIR] [options of fairseq-train]
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
exec python "$root/scripts/train.py" "$@"
