#!/usr/bin/env bash
# Every row of a paper's tables at reduced scale: scripts/reproduce.py says how.
#   usage: bash scripts/reproduce.sh --dataset embedded|multi30k|multi30k_base --table ibdecoder|dynamicconv|aan|amlp …
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
exec python "$root/scripts/reproduce.py" "$@"
