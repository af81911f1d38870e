#!/usr/bin/env bash
# WMT14 German-English: bash scripts/prepare_wmt14_de_en.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare wmt14_de_en "$@"
