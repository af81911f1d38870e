#!/usr/bin/env bash
# WMT18 English-Russian: bash scripts/prepare_wmt18_en_ru.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare wmt18_en_ru "$@"
