#!/usr/bin/env bash
# All rows of a paper's tables: bash scripts/reproduce.sh --corpus C --scale S --table T … (--help says more)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe reproduce "$@"
