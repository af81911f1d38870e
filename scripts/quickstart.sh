#!/usr/bin/env bash
# Installs, makes the embedded corpus, trains an autoregressive Transformer and an IBDecoder on it, decodes both with
# fairseq-generate and prints a table. Under 10 minutes on 2 CPU cores.
#   usage: bash scripts/quickstart.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bash "$root/scripts/install.sh"

work=$root/work/quickstart
rm -rf "$work"
mkdir -p "$work"
run python "$root/examples/embedded_corpus/generate.py" "$work/raw"
run fairseq-preprocess --source-lang en --target-lang de --joined-dictionary --destdir "$work/data-bin" \
  --trainpref "$work/raw/train" --validpref "$work/raw/valid" --testpref "$work/raw/test" > "$work/preprocess.log" 2>&1

for system in transformer ibdecoder; do
  folder=$work/$system
  mkdir "$folder"
  start=$(date +%s)
  # shellcheck disable=SC2046
  run fairseq-train "$work/data-bin" --user-dir "$plugin" $(system_task $system) $(system_model $system) \
    $(model_size 128 256 2 4) --dropout 0.1 --share-all-embeddings \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas "(0.9,0.98)" --lr-scheduler inverse_sqrt --lr 0.003 --warmup-updates 200 \
    --max-tokens 4000 --required-batch-size-multiple 1 --max-update 500 --no-epoch-checkpoints \
    --seed 1 --cpu --save-dir "$folder" --no-progress-bar --log-interval 100 > "$folder/train.log" 2>&1
  wall=$(( $(date +%s) - start ))
  # shellcheck disable=SC2046
  run fairseq-generate "$work/data-bin" --user-dir "$plugin" $(system_task $system) \
    --path "$folder/checkpoint_last.pt" --beam 4 --batch-size 1 --required-batch-size-multiple 1 --cpu \
    $([[ $system == transformer ]] || echo --print-step) > "$folder/generated.txt" 2>&1
  python "$root/scripts/score.py" "$folder/generated.txt" "$work/raw/test.de" \
    --checkpoint "$folder/checkpoint_last.pt" "data=embedded corpus" "search=beam 4, batch size 1" \
    "system=$system" profile=quickstart "training_seconds=$wall" >> "$work/results.jsonl" 2> "$folder/score.log"
done
python "$root/scripts/results_table.py" "$work/results.jsonl"
