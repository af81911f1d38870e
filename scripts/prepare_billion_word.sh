#!/usr/bin/env bash
# The billion word benchmark: bash scripts/prepare_billion_word.sh OUT … (--help says more, docs/language-models.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare billion_word "$@"
