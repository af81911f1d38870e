#!/usr/bin/env bash
# IWSLT14 German-English, lower-cased.
#   usage: bash scripts/prepare_iwslt14_de_en.sh OUT [--bpe-size N] [--reverse] [--mirror URL] [--checksums FILE]
#            [--workers N]                                                                     (docs/data.md)
# The DynamicConv paper's setting (Edunov et al. 2018): 10,000 joint merges, pairs of up to 175 words and a ratio of up to
# 1.5, every 23rd pair held out for validation, and a test set of five years that sacreBLEU does not have.
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
{
  name=iwslt14_de_en languages=(de en) bpe_size=10000 valid_set="every 23rd training pair"
  test_set="dev2010 dev2012 tst2010 tst2011 tst2012"
}
parse "$@"
archive="http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz -"
# shellcheck disable=SC2034
{
  train=("$archive de-en/train.tags.de-en.{}")
  test=("$archive$(printf ' de-en/IWSLT14.%s.de-en.{}.xml' TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012)")
}
text_options=(--tokenizer moses --lowercase --segmentation subword_nmt --filter-by words --max-length 175 --max-ratio 1.5
  --hold-out 23)
prepare
