# shellcheck shell=bash
# Shared by the scripts of this folder: sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/.venv/bin:$PATH"

# Prints a command the way a user could type it, then runs it.
run() { printf '+ %s\n' "$*" >&2; "$@"; }

# Ends the script with one line that starts with its name.
die() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; exit 1; }

# The comment at the head of the script: what --help prints.
header() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# For a script without arguments: --help prints its head, anything else is refused.
no_arguments() {
  case ${1-} in
    -h | --help) header; exit 0 ;;
    ?*) die "unknown argument: $1 (bash $0 --help)" ;;
  esac
}

# Becomes `amlp-fairseq COMMAND …`, whose --help follows the script's own.
recipe() {
  local word help=
  for word; do [[ $word == -h || $word == --help ]] && help=yes; done
  if [[ $help ]]; then header; fi
  if command -v amlp-fairseq > /dev/null; then exec amlp-fairseq "$@"; fi
  [[ $help ]] || die "amlp-fairseq is not installed: bash scripts/install.sh"
}

# The tables of a paper on its corpora, from download to the table:
#   paper TABLE "OPTIONS AT THE PAPER'S SIZE" CORPUS … -- ARGUMENT …
# Another --scale than paper among the ARGUMENTs runs on the corpus of that name; the others are those of reproduce.
paper() {
  local table=$1 scale=paper options=() corpora=() words=() corpus
  read -ra options <<< "--device cuda $2"
  shift 2
  while [[ $1 != -- ]]; do corpora+=("$1"); shift; done
  shift
  while (($#)); do
    case $1 in
      -h | --help) header; exit ;;
      --scale) scale=${2-}; [[ $scale ]] || die "--scale needs a name"; shift ;;
      --scale=*) scale=${1#*=} ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  command -v amlp-fairseq > /dev/null || die "amlp-fairseq is not installed: bash scripts/install.sh"
  [[ $scale == paper ]] || options=() corpora=("$scale")
  for corpus in "${corpora[@]}"; do
    run amlp-fairseq reproduce --corpus "$corpus" --scale "$scale" --table "$table" ${options[@]+"${options[@]}"} \
      ${words[@]+"${words[@]}"}
  done
}
