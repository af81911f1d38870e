#!/usr/bin/env bash
# Multi30k English-German (task 1).
#   usage: bash scripts/prepare_multi30k.sh OUT [--data DIR] [--vocab-size N] [--reverse] [--mirror URL]
#            [--checksums FILE] [--workers N]                                                  (docs/data.md)
# With --data nothing is downloaded: DIR holds train, val and test_2016_flickr as .en(.gz) and .de(.gz). sentencepiece
# with 4,000 joint pieces, as many as the small models of configs/multi30k need; configs/multi30k_base has 8,000.
set -euo pipefail
# shellcheck source=scripts/prepare_steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare_steps.sh"

# shellcheck disable=SC2034
{
  name=multi30k languages=(en de) valid_set=val test_set=test_2016_flickr vocab_size=4000 data=''
  options+=" --data"
}
parse "$@"
[[ -z $data || -d $data ]] || die "--data $data does not exist"
# Checksums: of the files in the repository multi30k/dataset at this commit.
raw=https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw
# shellcheck disable=SC2034
[[ -n $data ]] || train=(
  "$raw/train.en.gz d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"
  "$raw/train.de.gz 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"
  "$raw/val.en.gz 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"
  "$raw/val.de.gz f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"
  "$raw/test_2016_flickr.en.gz 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"
  "$raw/test_2016_flickr.de.gz 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"
)
folder=${data:-$out/downloads}
text_options=(--train "$folder" "train.{}" --valid "$folder" "val.{}" --test "$folder" "test_2016_flickr.{}"
  --segmentation sentencepiece --filter-by none)
prepare
