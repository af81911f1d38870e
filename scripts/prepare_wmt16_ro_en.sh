#!/usr/bin/env bash
# WMT16 Romanian-English: Europarl v8 and SETIMES 2.
#   usage: bash scripts/prepare_wmt16_ro_en.sh OUT [--bpe-size N] [--valid-set NAME] [--test-set NAME] [--reverse]
#            [--mirror URL] [--checksums FILE] [--workers N]                                   (docs/data.md)
# 32,000 joint merges as in the IBDecoder paper; Romanian diacritics are kept.
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
{
  name=wmt16_ro_en languages=(ro en) valid_set=wmt16/dev test_set=wmt16 bpe_size=32000
  options+=" --valid-set --test-set"
}
parse "$@"
# Checksums: tensorflow/datasets, url_checksums/wmt16_translate.txt; SETIMES there at its address of that time,
# opus.nlpl.eu/download.php?f=SETIMES/v2/tmx/en-ro.tmx.gz. Pairs: num_examples of wmt16 ro-en in huggingface/datasets'
# dataset_infos.json.
# shellcheck disable=SC2034
train=(
  "http://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz 8917bd3bef3bc894c8519ca1f8a4c7c330aad08a1263655a9d99ee13d532e3c7 */europarl-v8.ro-en.{}"
  "https://object.pouta.csc.fi/OPUS-SETIMES/v2/tmx/en-ro.tmx.gz 56bfaa2a8c8bdfccb7b50cc926067e2291347d807004e81faab8762ddbf26302 all"
)
text_options=(--tokenizer moses --normalize --split-hyphens --segmentation subword_nmt --filter-by pieces --max-length 250
  --max-ratio 1.5 --published-pairs 610320)
prepare
