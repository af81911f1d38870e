#!/usr/bin/env bash
# WMT14 English-German, also used for German-English: Europarl v7, Common Crawl, News Commentary v9.
#   usage: bash scripts/prepare_wmt14_en_de.sh OUT [--bpe-size N] [--news-commentary 9|11|12] [--valid-set NAME]
#            [--test-set NAME] [--reverse] [--mirror URL] [--checksums FILE] [--workers N]     (docs/data.md)
# 32,000 joint merges as in the IBDecoder and DynamicConv papers. News Commentary 11 makes it WMT16's training data, which
# DynamicConv takes, 12 fairseq's. The test set is sacreBLEU's wmt14 with 2737 sentences; others report wmt14/full (3003).
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
{
  name=wmt14_en_de languages=(en de) valid_set=wmt13 test_set=wmt14 bpe_size=32000 news_commentary=9
  options+=" --valid-set --test-set --news-commentary"
}
parse "$@"
# Checksums: tensorflow/datasets, url_checksums/wmt{14,16,17}_translate.txt. Pairs: num_examples of wmt14 and wmt16 de-en
# in huggingface/datasets' dataset_infos.json.
case $news_commentary in
  9) news="http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz"
    news_sum=cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485 pairs=4508785 ;;
  11) news="http://data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz"
    news_sum=cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a pairs=4548885 ;;
  12) news="http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz"
    news_sum=2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2 pairs=0 ;;
  *) die "--news-commentary '$news_commentary': choose 9, 11 or 12" ;;
esac
train=(
  "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz 0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7 training/europarl-v7.de-en.{}"
  "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5 commoncrawl.de-en.{}"
  "$news $news_sum */news-commentary-v$news_commentary.de-en.{}"
)
text_options=(--tokenizer moses --normalize --split-hyphens --segmentation subword_nmt --filter-by pieces --max-length 250
  --max-ratio 1.5 --published-pairs "$pairs")
prepare
