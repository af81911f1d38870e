#!/usr/bin/env bash
# CNN/Daily Mail, not anonymised: bash scripts/prepare_cnn_dailymail.sh OUT … (--help says more, docs/summarisation.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare cnn_dailymail "$@"
