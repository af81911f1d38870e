#!/usr/bin/env bash
# Trains the models of this folder on the embedded corpus, written as people write: one to two hours on two cores.
#   usage: bash examples/models/make.sh WORK
# WORK holds data and trainings; a run that was stopped goes on there. The models are made anew in this folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
source "$here/../../scripts/lib.sh"
if [[ $# == 1 && ($1 == -h || $1 == --help) ]]; then header; exit; fi
[[ $# == 1 && $1 && $1 != -* ]] || die "one folder is needed, got: ${*:-nothing} (bash $0 --help)"
mkdir -p "$1"
cd "$1"

bash "$here/corpus.sh" .
train() { # NAME ROW DATA UPDATES [OPTION ...]
  run amlp-fairseq train "$3" --row "$2" --scale embedded --save-dir "$1" --device cpu --max-update "$4" --save-interval-updates 100 "${@:5}"
  run amlp-fairseq evaluate "$1" "$3" --device cpu
  rm -rf "${here:?}/$1"
  run amlp-fairseq package "$1" --weights bfloat16 --out "$here/$1"
}
train ar transformer data/data-bin 1500
[[ -d distilled/raw ]] || run amlp-fairseq distill "$here/ar" data/data-bin distilled --device cpu
begin=(--finetune-from-model "$here/ar" --attention-dropout 0.0)
train ibdecoder ibdecoder distilled 2000 "${begin[@]}"
train ibdecoder_sa ibdecoder_sa distilled 2000 "${begin[@]}"
train cmlmc cmlmc distilled 7000 "${begin[@]}"
