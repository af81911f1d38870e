#!/usr/bin/env bash
# The embedded corpus: bash scripts/prepare_embedded.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare embedded "$@"
