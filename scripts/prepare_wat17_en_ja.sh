#!/usr/bin/env bash
# WAT17 English-Japanese, of --data: bash scripts/prepare_wat17_en_ja.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare wat17_en_ja "$@"
