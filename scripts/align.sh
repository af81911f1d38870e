#!/usr/bin/env bash
# Adds alignments to binarised data, for row nat_fertility: bash scripts/align.sh DATA OUT (--help says more)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe align "$@"
