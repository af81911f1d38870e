#!/usr/bin/env bash
# The embedded English-German corpus (examples/embedded_corpus): words as they are, nothing to download.
#   usage: bash scripts/prepare_embedded.sh OUT [--reverse] [--workers N]                     (docs/data.md)
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
name=embedded languages=(en de) valid_set=valid test_set=test options="--reverse --workers"
parse "$@"
generated=$out/generated
if [[ ! -d $generated ]]; then
  rm -rf "$generated.part"
  run python "$root/examples/embedded_corpus/generate.py" "$generated.part"
  mv "$generated.part" "$generated"
fi
# shellcheck disable=SC2034
text_options=(--train "$generated" "train.{}" --valid "$generated" "valid.{}" --test "$generated" "test.{}"
  --segmentation none --filter-by none)
prepare
