#!/usr/bin/env bash
# WMT16 Romanian-English: bash scripts/prepare_wmt16_ro_en.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare wmt16_ro_en "$@"
