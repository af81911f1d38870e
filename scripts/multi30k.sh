#!/usr/bin/env bash
# Multi30k English-German, from raw text to a line in a results file.
#   usage: bash scripts/multi30k.sh --data DIR --system SYSTEM [--profile lite|base] [--device cpu|cuda]
#                                   [--teacher CHECKPOINT] [--work DIR] [--results FILE]
# DIR holds train, val and test_2016_flickr as .en(.gz) and .de(.gz). SYSTEM: see scripts/lib.sh. 'lite' is a small model
# for about 30 minutes on 2 CPU cores, 'base' one for a GPU. With --teacher, a checkpoint of the system 'transformer' of
# the same work folder, the training targets are its translations (scripts/distill.sh). The work folder (default work/multi30k) keeps the encoded
# data, checkpoints and outputs; one JSON line is appended to the results file (default docs/results/multi30k.jsonl).
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

die() { echo "multi30k: $*" >&2; exit 2; }
data= system= teacher= profile=lite device=cpu work=$root/work/multi30k results=$root/docs/results/multi30k.jsonl
while (( $# )); do
  case $1 in
    --data|--system|--teacher|--profile|--device|--work|--results) [[ $# -gt 1 ]] || die "$1 needs a value"
      declare "${1#--}=$2"; shift 2 ;;
    *) die "unknown argument '$1'; known: --data --system --teacher --profile --device --work --results" ;;
  esac
done
[[ -n $data ]] || die "--data DIR is needed: the folder of the raw text"
[[ " $systems " == *" $system "* && -n $system ]] || die "--system '$system': choose one of $systems"
[[ $device == cpu || $device == cuda ]] || die "--device '$device': choose cpu or cuda"
case $profile in
  lite) vocabulary=4000 updates=3000 kernels=3,7,15,31
    model="$(model_size 128 256 4 4) --dropout 0.2 --attention-dropout 0.1"
    training="--lr 0.003 --warmup-updates 800 --max-tokens 4096 --keep-last-epochs 5"
    # Non-autoregressive ones learn more from as many words in more, smaller batches.
    [[ $system != cmlm* ]] || updates=7000 training="--lr 0.004 --warmup-updates 300 --max-tokens 1200 --keep-last-epochs 5" ;;
  base) vocabulary=8000 updates=12000 kernels=3,7,15,31,31,31
    model="$(model_size 512 1024 6 4) --dropout 0.3 --attention-dropout 0.1"
    training="--lr 0.0007 --warmup-updates 2000 --max-tokens 8192 --keep-last-epochs 5" ;;
  *) die "--profile '$profile': choose lite or base" ;;
esac
[[ -z $teacher || -f $teacher ]] || die "--teacher $teacher does not exist"
compute=--cpu; [[ $device == cpu ]] || compute=--fp16

# Raw text, under the split names that fairseq uses.
encoded=$work/pieces-$vocabulary binary=$work/data-bin-$vocabulary run_folder=$work/$system${teacher:+-distilled}-$profile
for pair in train:train valid:val test:test_2016_flickr; do
  for language in en de; do
    from=$data/${pair#*:}.$language
    [[ -f $from.gz || -f $from ]] || die "--data $data: neither $from nor $from.gz exists"
  done
done
mkdir -p "$work/raw"
for pair in train:train valid:val test:test_2016_flickr; do
  for language in en de; do
    from=$data/${pair#*:}.$language to=$work/raw/${pair%:*}.$language
    if [[ -f $from.gz ]]; then gzip -dc "$from.gz" > "$to"; else cp "$from" "$to"; fi
  done
done
if [[ ! -f $binary/complete ]]; then
  run python "$root/scripts/encode_text.py" "$work/raw" "$encoded" --languages en de --vocab-size $vocabulary
  rm -rf "$binary"
  run fairseq-preprocess --source-lang en --target-lang de --joined-dictionary --workers 2 --destdir "$binary" \
    --trainpref "$encoded/train" --validpref "$encoded/valid" --testpref "$encoded/test" > "$work/preprocess.log" 2>&1
  cp "$encoded/sentencepiece.bpe.model" "$binary"
  touch "$binary/complete"
fi

average="checkpoint[0-9]*.pt" folder=$run_folder reference=$work/raw/test.de detokenize="--post-process sentencepiece"
distilled
train_and_score "data=multi30k en-de test_2016_flickr" "profile=$profile"
