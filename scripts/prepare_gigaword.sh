#!/usr/bin/env bash
# Headlines of Gigaword, of --data: bash scripts/prepare_gigaword.sh OUT … (--help says more, docs/summarisation.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare gigaword "$@"
