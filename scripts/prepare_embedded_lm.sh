#!/usr/bin/env bash
# The English side of the embedded corpus: bash scripts/prepare_embedded_lm.sh OUT … (--help says more, docs/language-models.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare embedded_lm "$@"
