#!/usr/bin/env bash
# Sequence-level knowledge distillation (Kim and Rush 2016): a data folder again, with the teacher's translations of the
# training sources as training targets. Killed half-way, the same command goes on where it was.
#   usage: bash scripts/distill.sh TEACHER DATA OUT [--shards N] [--jobs J] [--max-ratio R] [options of fairseq-generate]
# See scripts/distill.py, or --help.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck disable=SC2154  # root is lib.sh's
exec python "$root/scripts/distill.py" "$@"
