#!/usr/bin/env bash
# WMT14 English-German: bash scripts/prepare_wmt14_en_de.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare wmt14_en_de "$@"
