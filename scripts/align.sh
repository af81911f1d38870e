#!/usr/bin/env bash
# A copy of binarised data with alignments, from which row nat_fertility learns how many words each word becomes.
#   usage: bash scripts/align.sh DATA OUT      (DATA: of amlp-fairseq prepare or distill; OUT: a new folder)
# eflomal-align makes them: pip install eflomal
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [[ ${1-} == -h || ${1-} == --help ]]; then header; exit; fi
for word; do [[ $word != -* ]] || die "unknown argument: $word (bash $0 --help)"; done
(($# == 2)) || die "give two folders, DATA and OUT (bash $0 --help)"
data=$1 out=$2
[[ -f $data/text.json ]] || die "$data is not a folder of amlp-fairseq prepare or distill: it has no text.json"
[[ ! -e $out ]] || die "$out exists already"
command -v eflomal-align > /dev/null || die "there is no eflomal-align: pip install eflomal"
mkdir -p "$(dirname "$out")"
text=$(mktemp -d)
trap 'rm -r "$text"' EXIT

# Writes words of training and validation set, and prints the two languages.
languages=$(python - "$data" "$text" << 'END'
import sys
from pathlib import Path

from fairseq.data import Dictionary, data_utils

data, out = map(Path, sys.argv[1:])
[pair] = {path.name.split(".")[1] for path in data.glob("train.*.idx")}
for language in pair.split("-"):
    words = Dictionary.load(str(data / f"dict.{language}.txt"))
    with (out / f"both.{language}").open("w", encoding="utf-8") as both:
        for part in ("train", "valid"):
            sentences = data_utils.load_indexed_dataset(str(data / f"{part}.{pair}.{language}"), words)
            lines = [words.string(sentences[i]) + "\n" for i in range(len(sentences))]
            (out / f"{part}.{language}").write_text("".join(lines), encoding="utf-8")
            both.writelines(lines)
print(*pair.split("-"))
END
)
read -r source target <<< "$languages"
run eflomal-align -s "$text/both.$source" -t "$text/both.$target" -f "$text/both.align"
count=$(wc -l < "$text/train.$source")
head -n "$count" "$text/both.align" > "$text/train.align"
tail -n "+$((count + 1))" "$text/both.align" > "$text/valid.align"
run amlp-fairseq preprocess -s "$source" -t "$target" --srcdict "$data/dict.$source.txt" --tgtdict "$data/dict.$target.txt" \
  --trainpref "$text/train" --validpref "$text/valid" --align-suffix align --destdir "$text/data-bin"
for file in "$data"/*; do  # test set, raw text and what else there is
  [[ -e $text/data-bin/$(basename "$file") ]] || cp -r "$file" "$text/data-bin"
done
mv "$text/data-bin" "$out"
