#!/usr/bin/env bash
# The embedded corpus, from nothing to a line in a results file: minutes on a CPU.
#   usage: bash scripts/embedded.sh --system SYSTEM [--teacher CHECKPOINT] [--updates N] [--work DIR] [--results FILE]
# SYSTEM: see scripts/lib.sh. With --teacher, a checkpoint of fairseq's task 'translation' on this corpus, the training
# targets are its translations (scripts/distill.sh). N is 500, and 2000 for the cmlm systems. The work folder (default
# work/embedded) keeps data, checkpoints and outputs; one JSON line is appended to the results file (default
# docs/results/embedded.jsonl).
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

die() { echo "embedded: $*" >&2; exit 2; }
system= teacher= updates= work=$root/work/embedded results=$root/docs/results/embedded.jsonl
while (( $# )); do
  case $1 in
    --system|--teacher|--updates|--work|--results) [[ $# -gt 1 ]] || die "$1 needs a value"
      declare "${1#--}=$2"; shift 2 ;;
    *) die "unknown argument '$1'; known: --system --teacher --updates --work --results" ;;
  esac
done
[[ " $systems " == *" $system "* && -n $system ]] || die "--system '$system': choose one of $systems"
[[ -z $teacher || -f $teacher ]] || die "--teacher $teacher does not exist"
case $system in
  cmlm*) updates=${updates:-2000} training="--lr 0.004 --warmup-updates 300 --max-tokens 1200" ;;
  *) updates=${updates:-500} training="--lr 0.003 --warmup-updates 200 --max-tokens 4000" ;;
esac
training+=" --no-epoch-checkpoints --save-interval-updates 20 --keep-interval-updates 3 --disable-validation"

binary=$work/data-bin
if [[ ! -f $binary/complete ]]; then
  rm -rf "$work/raw" "$binary"
  run python "$root/examples/embedded_corpus/generate.py" "$work/raw"
  run fairseq-preprocess --source-lang en --target-lang de --joined-dictionary --destdir "$binary" \
    --trainpref "$work/raw/train" --validpref "$work/raw/valid" --testpref "$work/raw/test" > "$work/preprocess.log" 2>&1
  touch "$binary/complete"
fi
compute=--cpu kernels=3,7 model="$(model_size 128 256 2 4) --dropout 0.1" average="checkpoint_*_*.pt"
folder=$work/$system${teacher:+-distilled} reference=$work/raw/test.de detokenize=
distilled
train_and_score "data=embedded corpus" profile=embedded
