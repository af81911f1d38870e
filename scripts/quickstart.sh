#!/usr/bin/env bash
# Installs, translates with the models of examples/models, trains two fast ones that learn from the Transformer among
# them, and shows what one gains: fairseq's search, the plugin's, int8, and both of them, with BLEU, decoder calls and
# milliseconds side by side. Two CPU cores will do; it takes minutes.
#   usage: bash scripts/quickstart.sh
# Everything is written to work/quickstart, what one gains to gains.txt there; a run that was stopped goes on there. The
# settings of scripts/install.sh hold here, too: WHEELS=FOLDER needs no compiler.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
no_arguments "$@"
work=$root/work/quickstart
if [[ -e $work && ! -f $work/made_by_quickstart ]]; then
  die "$work was not made by this script (it has no file made_by_quickstart): move it away, or remove it"
fi
bash "$root/scripts/install.sh"

mkdir -p "$work"
touch "$work/made_by_quickstart"
cd "$root"
models=examples/models
say() { printf '\n%s\n\n' "$*" >&2; }

say 'Translate at once: four words a step instead of one'
cat > "$work/text" <<< $'He says that the student can find the big cars.\nIn the morning his friendly uncle meets them.'
run amlp-fairseq translate --model "$models/ibdecoder_sa" --input "$work/text"

say "Let the Transformer $models/ar translate the training text: fast systems learn from what it writes"
bash "$models/corpus.sh" "$work"
if [[ ! -d $work/distilled ]]; then
  run amlp-fairseq distill "$models/ar" "$work/data" "$work/distilled" --device cpu --decode-dtype int8
fi

for row in transformer_student ibdecoder; do
  if [[ -d $work/models/$row ]]; then continue; fi
  options=()
  if [[ $row == transformer_student ]]; then options=(--arch plugin_transformer); fi  # which takes what fits of another model
  say "Train $row on it, from the Transformer's parameters"
  run amlp-fairseq train "$work/distilled" --row "$row" --scale embedded --save-dir "$work/$row" --device cpu \
    --finetune-from-model "$models/ar" --attention-dropout 0.0 --save-interval-updates 100 "${options[@]}"
  run amlp-fairseq evaluate "$work/$row" "$work/distilled" --device cpu --batch-size 50 > /dev/null
  run amlp-fairseq package "$work/$row" --out "$work/models/$row"
done

say 'What one gains'
run amlp-fairseq compare --model "$models/ar --engine fairseq" --model "$models/ar" \
  --model "$models/ar --decode-dtype int8" --model "$work/models/transformer_student --decode-dtype int8" \
  --model "$work/models/ibdecoder --decode-dtype int8" \
  --source "$work/raw/test.en" --reference "$work/raw/test.de" --sentences 100 | tee "$work/gains.txt"

cat >&2 << 'end'

What next:
  amlp-fairseq watch --model examples/models/ibdecoder "The doctor is sixty years old."    how it writes
  examples/own_corpus/README.md                                                            your own corpus
  docs/which-system.md                                                                     which system to use
end
