#!/usr/bin/env bash
# WMT17 Chinese-English: News Commentary v12, UN v1.0, CWMT.
#   usage: bash scripts/prepare_wmt17_zh_en.sh OUT [--vocab-size N] [--valid-set NAME] [--test-set NAME] [--reverse]
#            [--mirror URL] [--checksums FILE] [--workers N]                                   (docs/data.md)
# The DynamicConv paper's sets: validation on newsdev2017, test on newstest2017. Its preprocessing and filter (Hassan et
# al. 2018, 20M pairs) are not published with numbers that could be checked; here sentencepiece with 32,000 joint pieces,
# which needs no Chinese word segmentation, and pairs of up to 250 pieces and a ratio of up to 2.
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
{
  name=wmt17_zh_en languages=(zh en) valid_set=wmt17/dev test_set=wmt17 vocab_size=32000
  options+=" --valid-set --test-set"
}
parse "$@"
# Checksums: tensorflow/datasets, url_checksums/wmt17_translate.txt; those of CWMT and the pairs (num_examples of wmt17
# zh-en) are huggingface/datasets' dataset_infos.json's.
cwmt=https://huggingface.co/datasets/wmt/wmt18/resolve/main/cwmt-wmt
# shellcheck disable=SC2034
train=(
  "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz 2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2 training/news-commentary-v12.zh-en.{}"
  "https://storage.googleapis.com/tfds-data/downloads/uncorpus/UNv1.0.en-zh.tar.gz 6f9c6401d5f0a49b20661324570d99fb86822d82f974748a361e19b9b886dd49 en-zh/UNv1.0.en-zh.{}"
  "$cwmt/casia2015.zip c939f1528f96c419e9bbffb9caad869616a969e7704ffac896e245a02aff59a9 casia2015/*_c[hn].txt|casia2015/*_en.txt"
  "$cwmt/casict2011.zip 606adc0ccc5d8fc7c47f8589991286616342a1a379a571ce3038918731ae0182 casict2011/*_c[hn].txt|casict2011/*_en.txt"
  "$cwmt/casict2015.zip eef8e25b297c1aff12ab24719247d3588e756d7a4e2c30d4d34fcb4d05ab1050 casict2015/*_c[hn].txt|casict2015/*_en.txt"
  "$cwmt/datum2015.zip 654afce6731485c40ce856514ab80cd2bfd836126bcaf48cdb911ebc32b021a4 datum2015/*_c[hn].txt|datum2015/*_en.txt"
  "$cwmt/datum2017.zip 737455c139596f4abf3b1da73bc38932b3ef9534549328eff47d867e29950ed2 datum2017/*_c[hn].txt|datum2017/*_en.txt"
  "$cwmt/neu2017.zip 5c5ea9ac5cbc43c974bd53796a3a29829800865b6398b52cda0a3854cb0d2e03 neu2017/*_c[hn].txt|neu2017/*_en.txt"
)
text_options=(--segmentation sentencepiece --character-coverage 0.9995 --sample 10000000 --filter-by pieces
  --max-length 250 --max-ratio 2 --published-pairs 25134743)
prepare
