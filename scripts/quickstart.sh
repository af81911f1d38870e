#!/usr/bin/env bash
# Installs, translates with the models of examples/models, trains a model of your own for a few minutes, and shows all of
# them side by side: translations, BLEU, decoder calls, milliseconds. Two CPU cores will do.
#   usage: bash scripts/quickstart.sh
# Everything is written to work/quickstart, which a later run makes anew. The settings of scripts/install.sh hold here,
# too: WHEELS=FOLDER needs no compiler.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
no_arguments "$@"
work=$root/work/quickstart
if [[ -e $work && ! -f $work/made_by_quickstart ]]; then
  die "$work was not made by this script (it has no file made_by_quickstart): move it away, or remove it"
fi
bash "$root/scripts/install.sh"

rm -rf "$work"
mkdir -p "$work"
touch "$work/made_by_quickstart"
cd "$root"
models=examples/models
printf '\nTranslate at once: four words a step instead of one\n\n' >&2
cat > "$work/text" <<< $'He says that the student can find the big cars.\nIn the morning his friendly uncle meets them.'
run amlp-fairseq translate --model "$models/ibdecoder_sa" --input "$work/text"

printf '\nTrain an IBDecoder\n\n' >&2
bash "$models/corpus.sh" "$work"
run amlp-fairseq train "$work/data/data-bin" --row ibdecoder --scale embedded --save-dir "$work/training" --cpu
run amlp-fairseq evaluate "$work/training" "$work/data/data-bin" --cpu --batch-size 50 > /dev/null
run amlp-fairseq package "$work/training" --out "$work/yours"

printf '\nBeside the models of %s, which trained longer, the last three on translations of the first\n\n' "$models" >&2
run amlp-fairseq compare --model "$models/ar" --model "$models/cmlmc" --model "$models/ibdecoder" \
  --model "$models/ibdecoder_sa" --model "$work/yours" \
  --source "$work/raw/test.en" --reference "$work/raw/test.de" --sentences 100

cat >&2 << 'end'

What next:
  amlp-fairseq watch --model examples/models/ibdecoder "The doctor is sixty years old."    how it writes
  examples/own_corpus/README.md                                                            your own corpus
  docs/which-system.md                                                                     which system to use
end
