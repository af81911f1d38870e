#!/usr/bin/env bash
# WMT17 German-English: bash scripts/prepare_wmt17_de_en.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare wmt17_de_en "$@"
