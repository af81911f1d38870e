#!/usr/bin/env bash
# Multi30k English-German: bash scripts/prepare_multi30k.sh OUT … (--help says more, docs/data.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare multi30k "$@"
