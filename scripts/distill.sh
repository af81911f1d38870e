#!/usr/bin/env bash
# Sequence-level distillation (Kim and Rush 2016): bash scripts/distill.sh TEACHER DATA OUT … (--help says more)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
recipe distill "$@"
