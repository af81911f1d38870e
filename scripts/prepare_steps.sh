# Shared by scripts/prepare_*.sh: sourced, not run. A script sets what its data set is, calls parse "$@" and prepare.
# Downloads are continued and checked, the text steps are those of scripts/prepare_text.py, fairseq-preprocess binarises;
# whatever is whole is not made again, so a run that was stopped can be started again.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
die() { echo "$(basename "$0" .sh): $*" >&2; exit 2; }

# What a script sets: entries "URL SHA256 PATTERN …" for each role (SHA256 is - where nobody has published one; patterns
# as in prepare_text.py), folders and options for prepare_text.py, and the defaults of its command line.
train=() valid=() test=() text_options=()
out='' mirror='' checksums='' reverse='' bpe_size='' vocab_size='' workers=$(nproc)
options="--mirror --checksums --workers --reverse"

# parse ARGUMENT …: sets $out and one variable for each option.
parse() {
  local name
  options+="${bpe_size:+ --bpe-size}${vocab_size:+ --vocab-size}"
  while (( $# )); do
    case $1 in
      --*)
        [[ " $options " == *" $1 "* ]] || die "unknown argument '$1'; known: $options"
        if [[ $1 == --reverse ]]; then reverse=$1; shift; continue; fi
        [[ $# -gt 1 ]] || die "$1 needs a value"
        name=${1#--}
        declare -g "${name//-/_}=$2"; shift 2 ;;
      *) [[ -z $out ]] || die "one folder is needed, not '$out' and '$1'"
        out=$1; shift ;;
    esac
  done
  [[ -n $out ]] || die "a folder to write to is needed"
  [[ -z $checksums || -f $checksums ]] || die "--checksums $checksums does not exist"
  [[ $workers =~ ^[1-9][0-9]*$ ]] || die "--workers '$workers': a number from 1 is needed"
  [[ ${bpe_size:-1}${vocab_size:-1} =~ ^[1-9][0-9]*$ ]] || die "'$bpe_size$vocab_size' units: a number from 1 is needed"
}

# checksum_of FILE SUMS: what a file of sha256sum says of a name; nothing where it does not.
checksum_of() { awk -v name="$1" '$2 == name { print $1 }' "$2"; }

# fetch URL FILE: continues FILE where it ends; from the start where the server cannot or there is nothing left.
fetch() {
  local status=0 meter=
  [[ -t 2 ]] || meter=--no-progress-meter
  # shellcheck disable=SC2086
  curl --fail --location --retry 3 $meter --continue-at - --output "$2" "$1" || status=$?
  if [[ $status =~ ^(22|33|36)$ && -e $2 ]]; then
    rm "$2"
    # shellcheck disable=SC2086
    curl --fail --location --retry 3 $meter --output "$2" "$1" && status=0 || status=$?
  fi
  return $status
}

# download URL SHA256: to $out/downloads, unless it is there; checked in both cases.
downloads=()
download() {
  local url=$1 expected=$2 name=${1##*/} kind=published actual recorded
  local file=$out/downloads/$name sums=$out/downloads/SHA256SUMS from=$1
  [[ -z $mirror ]] || from=${mirror%/}/${url#*://}
  mkdir -p "$out/downloads"
  touch "$sums"
  if [[ ! -f $file ]]; then
    echo "+ $from" >&2
    fetch "$from" "$file.part" || die "$from: download failed; what has arrived is kept, run again to continue"
    mv "$file.part" "$file"
  fi
  actual=$(sha256sum < "$file" | cut -d ' ' -f 1) recorded=$(checksum_of "$name" "$sums")
  if [[ -n $checksums ]]; then
    kind=given expected=$(checksum_of "$name" "$checksums")
    [[ -n $expected ]] || die "--checksums $checksums has no line for $name"
  elif [[ $expected == - ]]; then
    kind=recorded expected=${recorded:-$actual}
    [[ -n $recorded ]] || echo "$name: nobody has published a checksum; recorded in $sums for later runs" >&2
  fi
  [[ $actual == "$expected" ]] || die "$file has the SHA-256 $actual, the $kind one is $expected: it is corrupt, or another" \
    "file than this script was written for; remove it and run again"
  { grep -v "  $name\$" "$sums" || true; echo "$actual  $name"; } > "$sums.part"
  mv "$sums.part" "$sums"
  downloads+=(--download "$name" "$url" "$kind")
}

# prepare: everything from downloads to $out/data-bin, with what the script has set.
prepare() {
  local role entry fields pattern pair=("${languages[@]}") prefixes=() text=()
  for role in train valid test; do
    local -n entries=$role
    for entry in "${entries[@]}"; do
      read -ra fields <<< "$entry"
      download "${fields[0]}" "${fields[1]}"
      for pattern in "${fields[@]:2}"; do text+=("--$role" "$out/downloads/${fields[0]##*/}" "$pattern"); done
    done
  done
  # shellcheck disable=SC2086
  run python "$root/scripts/prepare_text.py" text "$out" --name "$name" --languages "${languages[@]}" $reverse \
    --valid-set "$valid_set" --test-set "$test_set" --size "${bpe_size:-${vocab_size:-0}}" --workers "$workers" \
    "${text_options[@]}" "${text[@]}"
  if [[ ! -d $out/data-bin ]]; then
    [[ -z $reverse ]] || pair=("${languages[1]}" "${languages[0]}")
    for role in train valid test; do prefixes+=("--${role}pref" "$out/text/pieces/$role"); done
    rm -rf "$out/data-bin.unfinished"
    run fairseq-preprocess --source-lang "${pair[0]}" --target-lang "${pair[1]}" --joined-dictionary \
      --workers "$workers" --destdir "$out/data-bin.unfinished" "${prefixes[@]}" > "$out/preprocess.log" 2>&1 \
      || { tail -n 3 "$out/preprocess.log" >&2; exit 1; }
    rm -f "$out/data-bin.unfinished/preprocess.log"
    run python "$root/scripts/prepare_text.py" finish "$out" --binary "$out/data-bin.unfinished" "${downloads[@]}"
  fi
}
