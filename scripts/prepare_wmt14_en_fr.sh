#!/usr/bin/env bash
# WMT14 English-French: Europarl v7, Common Crawl, UN, News Commentary v9, 10^9 corpus.
#   usage: bash scripts/prepare_wmt14_en_fr.sh OUT [--bpe-size N] [--valid-set NAME] [--test-set NAME] [--reverse]
#            [--mirror URL] [--checksums FILE] [--workers N]                                   (docs/data.md)
# The DynamicConv paper's setting, after Gehring et al. 2017: 40,000 joint merges, pairs of up to 175 words and a ratio of
# up to 1.5 (fairseq-lua issue 59), validation on newstest2012 and 2013. The IBDecoder paper has --bpe-size 32000.
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
{
  name=wmt14_en_fr languages=(en fr) valid_set=wmt12+wmt13 test_set=wmt14 bpe_size=40000
  options+=" --valid-set --test-set"
}
parse "$@"
# Checksums: tensorflow/datasets, url_checksums/wmt{13,14,15}_translate.txt. Pairs: num_examples of wmt14 fr-en in
# huggingface/datasets' dataset_infos.json.
# shellcheck disable=SC2034
train=(
  "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz 0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7 training/europarl-v7.fr-en.{}"
  "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5 commoncrawl.fr-en.{}"
  "http://www.statmt.org/wmt13/training-parallel-un.tgz 29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47 un/undoc.2000.fr-en.{}"
  "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485 training/news-commentary-v9.fr-en.{}"
  "http://www.statmt.org/wmt10/training-giga-fren.tar 3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a giga-fren.release2.fixed.{}.gz"
)
text_options=(--tokenizer moses --normalize --split-hyphens --segmentation subword_nmt --filter-by words --max-length 175
  --max-ratio 1.5 --published-pairs 40836715)
prepare
