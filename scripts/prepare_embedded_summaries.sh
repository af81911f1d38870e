#!/usr/bin/env bash
# Summaries of the embedded corpus: bash scripts/prepare_embedded_summaries.sh OUT … (--help says more, docs/summarisation.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare embedded_summaries "$@"
