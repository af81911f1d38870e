#!/usr/bin/env bash
# Multi30k English-German, from raw text to a line in a results file.
#   usage: bash scripts/multi30k.sh --data DIR --system SYSTEM [--profile lite|base] [--device cpu|cuda]
#                                   [--work DIR] [--results FILE]
# DIR holds train, val and test_2016_flickr as .en(.gz) and .de(.gz). SYSTEM: see scripts/lib.sh. 'lite' is a small model
# for about 30 minutes on 2 CPU cores, 'base' one for a GPU. The work folder (default work/multi30k) keeps the encoded
# data, checkpoints and outputs; one JSON line is appended to the results file (default docs/results/multi30k.jsonl).
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

die() { echo "multi30k: $*" >&2; exit 2; }
data= system= profile=lite device=cpu work=$root/work/multi30k results=$root/docs/results/multi30k.jsonl
while (( $# )); do
  case $1 in
    --data|--system|--profile|--device|--work|--results) [[ $# -gt 1 ]] || die "$1 needs a value"
      declare "${1#--}=$2"; shift 2 ;;
    *) die "unknown argument '$1'; known: --data --system --profile --device --work --results" ;;
  esac
done
[[ -n $data ]] || die "--data DIR is needed: the folder of the raw text"
[[ " $systems " == *" $system "* && -n $system ]] || die "--system '$system': choose one of $systems"
[[ $device == cpu || $device == cuda ]] || die "--device '$device': choose cpu or cuda"
case $profile in
  lite) vocabulary=4000 updates=3000 kernels=3,7,15,31
    model="$(model_size 128 256 4 4) --dropout 0.2 --attention-dropout 0.1"
    training="--lr 0.003 --warmup-updates 800 --max-tokens 4096" ;;
  base) vocabulary=8000 updates=12000 kernels=3,7,15,31,31,31
    model="$(model_size 512 1024 6 4) --dropout 0.3 --attention-dropout 0.1"
    training="--lr 0.0007 --warmup-updates 2000 --max-tokens 8192" ;;
  *) die "--profile '$profile': choose lite or base" ;;
esac
compute=--cpu; [[ $device == cpu ]] || compute=--fp16

# Raw text, under the split names that fairseq uses.
encoded=$work/pieces-$vocabulary binary=$work/data-bin-$vocabulary run_folder=$work/$system-$profile
for pair in train:train valid:val test:test_2016_flickr; do
  for language in en de; do
    from=$data/${pair#*:}.$language
    [[ -f $from.gz || -f $from ]] || die "--data $data: neither $from nor $from.gz exists"
  done
done
rm -rf "$run_folder"  # a run resumed would report too short a training
mkdir -p "$work/raw" "$run_folder" "$(dirname "$results")"
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

start=$(date +%s)
# shellcheck disable=SC2046,SC2086
run fairseq-train "$binary" --user-dir "$plugin" $(system_task "$system") $(system_model "$system" $kernels) $model \
  --share-all-embeddings --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
  --optimizer adam --adam-betas "(0.9,0.98)" --lr-scheduler inverse_sqrt $training \
  --max-update $updates --keep-last-epochs 5 --required-batch-size-multiple 1 \
  --seed 1 $compute --save-dir "$run_folder" --no-progress-bar --log-interval 100 > "$run_folder/train.log" 2>&1
wall=$(( $(date +%s) - start ))
run amlp-average-checkpoints --inputs "$run_folder" --last-epochs 5 --output "$run_folder/average.pt"
# shellcheck disable=SC2046
run fairseq-generate "$binary" --user-dir "$plugin" $(system_task "$system") --path "$run_folder/average.pt" \
  --gen-subset test --beam 4 --lenpen 0.6 --batch-size 1 --required-batch-size-multiple 1 \
  --post-process sentencepiece $compute $([[ $(system_task "$system") != *interleaved* ]] || echo --print-step) \
  > "$run_folder/generated.txt" 2>&1
run python "$root/scripts/score.py" "$run_folder/generated.txt" "$work/raw/test.de" \
  --checkpoint "$run_folder/checkpoint_last.pt" \
  "data=multi30k en-de test_2016_flickr" "search=beam 4, lenpen 0.6, batch size 1" \
  "system=$system" "profile=$profile" "training_seconds=$wall" \
  | tee -a "$results"
