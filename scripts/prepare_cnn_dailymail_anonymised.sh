#!/usr/bin/env bash
# CNN/Daily Mail, anonymised, of --data: bash scripts/prepare_cnn_dailymail_anonymised.sh OUT … (--help says more, docs/summarisation.md all)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe prepare cnn_dailymail_anonymised "$@"
