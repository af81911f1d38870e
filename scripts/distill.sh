#!/usr/bin/env bash
# Sequence-level knowledge distillation (Kim and Rush 2016): a data folder again, with the teacher's translations of the
# training sources as training targets.
#   usage: bash scripts/distill.sh TEACHER DATA OUT [options of fairseq-generate]
# TEACHER is a checkpoint, DATA a folder made by fairseq-preprocess, OUT a new one: same dictionaries, sources, and
# validation and test data. The options are for the teacher: its --task where it is not 'translation', --cpu, …
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

die() { echo "distill: $*" >&2; exit 2; }
[[ $# -ge 3 ]] || die "three arguments are needed: TEACHER DATA OUT"
teacher=$1 data=$2 out=$3; shift 3
[[ -f $teacher ]] || die "TEACHER $teacher does not exist"
[[ ! -e $out ]] || die "OUT $out exists"
shopt -s nullglob
found=("$data"/train.*-*.*.idx)
(( ${#found[@]} )) || die "DATA $data has no training data of fairseq-preprocess"
pair=$(basename "${found[0]}" | cut -d. -f2) target=${pair#*-}

work=$out.unfinished
rm -rf "$work"
mkdir -p "$work"
run fairseq-generate "$data" --user-dir "$plugin" --path "$teacher" --gen-subset train --beam 5 --max-tokens 8000 \
  --required-batch-size-multiple 1 "$@" > "$work/generated.txt" 2> "$work/generate.log" \
  || { tail -n 3 "$work/generate.log" >&2; exit 1; }
run python "$root/scripts/restore_order.py" "$work/generated.txt" --like "$data/train.$pair.${pair%-*}" > "$work/train.$target"
# Targets alone: the sources are kept as they are, byte by byte.
run fairseq-preprocess --source-lang "$target" --target-lang "${pair%-*}" --only-source \
  --srcdict "$data/dict.$target.txt" --trainpref "$work/train" --destdir "$work/binary" > "$work/preprocess.log" 2>&1
cp "$data"/dict.*.txt "$data"/{train,valid,test}*."$pair".* "$work"
for end in bin idx; do mv "$work/binary/train.$target-${pair%-*}.$target.$end" "$work/train.$pair.$target.$end"; done
rm -r "$work/binary"
mv "$work" "$out"
