# Shared by the recipes: sourced, not run. Expects to be sourced from a script in scripts/.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/.venv/bin:$PATH"
plugin=$root/amlp_fairseq

# Prints a command the way a user could type it, then runs it.
run() { printf '+ %s\n' "$*" >&2; "$@"; }

systems="transformer ar sat ibdecoder ibdecoder-sa imdecoder"
systems+=" triton_lightconv triton_dynamicconv ibdecoder-dynamicconv aan_transformer ibdecoder-aan"
systems+=" transformer-abc transformer-local"
systems+=" cmlm cmlmc cmlmc-amlp cmlmc-amlp-cov cmlmc-abc cmlmc-local"

# system_task NAME: a system's task, for training; for decoding as well.
system_task() {
  case $1 in
    transformer*|triton_*|aan_transformer) echo "--task translation" ;;
    ar) echo "--task translation_interleaved --num-directions 1" ;;
    sat) echo "--task translation_interleaved --num-directions 1 --words-per-direction 2" ;;
    ibdecoder|ibdecoder-dynamicconv|ibdecoder-aan) echo "--task translation_interleaved" ;;
    ibdecoder-sa) echo "--task translation_interleaved --words-per-direction 2" ;;
    imdecoder) echo "--task translation_interleaved --num-directions 4" ;;
    cmlm*) echo "--task translation_cmlmc" ;;
    *) echo "unknown system '$1': choose one of $systems" >&2; return 1 ;;
  esac
}

# system_model NAME KERNELS UPDATES: a system's architecture; KERNELS are the widths of its convolutions, one for each
# layer, UPDATES those of the training, of which CMLMC's correction loss gets the second half.
system_model() {
  # Small non-autoregressive models learn several times as fast with the norms in front.
  local nat="--arch cmlmc_transformer --encoder-normalize-before --decoder-normalize-before"
  local cmlmc="$nat --self-correction $(( $3 / 2 ))"
  case $1 in
    transformer|aan_transformer) echo "--arch $1" ;;
    triton_*) echo "--arch $1 --encoder-kernel-size-list $2 --decoder-kernel-size-list $2" ;;
    ibdecoder-dynamicconv)
      echo "--arch ibdecoder --decoder-self-attention-type dynamic_conv --decoder-kernel-size-list $2" ;;
    ibdecoder-aan) echo "--arch ibdecoder --decoder-self-attention-type average" ;;
    transformer-*) echo "--arch plugin_transformer $(decoder_attention "${1#transformer-}") --attention-window 5" ;;
    cmlm) echo "$nat --no-repos --no-concatenated-positions --self-correction -1" ;;
    cmlmc) echo "$cmlmc" ;;
    cmlmc-amlp) echo "$cmlmc $(decoder_attention amlp_pquery)" ;;
    cmlmc-amlp-cov) echo "$cmlmc $(decoder_attention amlp_cov)" ;;
    cmlmc-*) echo "$cmlmc $(decoder_attention "${1#cmlmc-}")" ;;
    *) echo "--arch ibdecoder" ;;
  esac
}

# decoder_attention TYPE: one attention for the decoder's self- and cross-attention.
decoder_attention() { echo "--decoder-self-attention-type $1 --decoder-cross-attention-type $1"; }

# system_criterion NAME: the loss; label smoothing is the same for all.
system_criterion() {
  case $1 in
    cmlm*) echo "--criterion nat_loss" ;;
    *) echo "--criterion label_smoothed_cross_entropy" ;;
  esac
}

# system_searches NAME: how fairseq-generate decodes, one way a line: what the results call it, a colon, and its options.
system_searches() {
  case $1 in
    cmlm*)
      echo "10 iterations: --iter-decode-max-iter 9 --iter-decode-with-beam 3 --print-step"
      echo "1 iteration: --iter-decode-max-iter 0 --iter-decode-with-beam 3 --print-step" ;;
    transformer*|triton_*|aan_transformer) echo "beam 4: --beam 4 --lenpen 0.6" ;;
    *) echo "beam 4: --beam 4 --lenpen 0.6 --print-step" ;;
  esac
}

# model_size D FFN LAYERS HEADS: flags that make encoder and decoder that large.
model_size() {
  local side
  for side in encoder decoder; do
    printf -- '--%s-embed-dim %s --%s-ffn-embed-dim %s --%s-layers %s --%s-attention-heads %s ' \
      $side "$1" $side "$2" $side "$3" $side "$4"
  done
}

# glibc returns every large tensor's memory to the kernel at once and faults it in again for the next one: keeping it
# makes training on a CPU about 1.4 times as fast (measured with the lite profile of multi30k.sh).
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456

# train_and_score: trains $system on the data folder $binary for $updates updates with the options $model and $training,
# averages the checkpoints $average (a pattern of names), decodes the test set one sentence at a time and appends a line
# of results for each search, with the facts given as KEY=VALUE, to the file $results. Everything else goes to the folder
# $folder.
train_and_score() {
  local start wall search
  rm -rf "$folder"  # a run resumed would report too short a training
  mkdir -p "$folder" "$(dirname "$results")"
  start=$(date +%s)
  # shellcheck disable=SC2046,SC2086
  run fairseq-train "$binary" --user-dir "$plugin" $(system_task "$system") $(system_model "$system" $kernels $updates) $model \
    --share-all-embeddings $(system_criterion "$system") --label-smoothing 0.1 \
    --optimizer adam --adam-betas "(0.9,0.98)" --lr-scheduler inverse_sqrt $training \
    --max-update $updates --required-batch-size-multiple 1 \
    --seed 1 $compute --save-dir "$folder" --no-progress-bar --log-interval 100 > "$folder/train.log" 2>&1
  wall=$(( $(date +%s) - start ))
  # shellcheck disable=SC2086
  run amlp-average-checkpoints --inputs "$folder"/$average --output "$folder/average.pt"
  system_searches "$system" | while read -r search; do
    # shellcheck disable=SC2046,SC2086
    run fairseq-generate "$binary" --user-dir "$plugin" $(system_task "$system") --path "$folder/average.pt" \
      --gen-subset test ${search#*: } --batch-size 1 --required-batch-size-multiple 1 $compute $detokenize \
      > "$folder/generated.txt" 2>&1 < /dev/null
    run python "$root/scripts/score.py" "$folder/generated.txt" "$reference" --checkpoint "$folder/checkpoint_last.pt" \
      "system=$system${teacher:+ (distilled)}" "decoding=${search%%: *}" "search=${search#*: }" "training_seconds=$wall" \
      "$@" | tee -a "$results"
  done
}

# distilled: with a checkpoint $teacher, makes $binary the data with its translations as training targets.
distilled() {
  [[ -n $teacher ]] || return 0
  local to=$binary-distilled
  [[ -e $to ]] || run bash "$root/scripts/distill.sh" "$teacher" "$binary" "$to" $compute
  binary=$to
}
