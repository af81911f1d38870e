#!/usr/bin/env bash
# Checks and times everything that a GPU must do for this project, in about 10 minutes, and needs no network: kernels
# against float64, CUDA graphs against plain decoding, bandwidth, lengths, decoding. Without a CUDA device the kernels run
# in Triton's interpreter, at small sizes.
#   usage: bash scripts/gpu_check.sh [--wheels FOLDER] [--out FILE.json] [-- OPTION …]
#
#   --wheels FOLDER  wheels of fairseq and what it needs (of scripts/build_wheels.sh, say), for a Python that has torch
#                    and triton but not these; they are installed into a temporary folder
#   --out FILE.json  all numbers (default: gpu_check.json); the same as tables goes to standard output
#   PYTHON           the interpreter (default: that of .venv if there is one, else python3)
#
# OPTIONs are those of python -m benchmarks.gpu_check. The status is 1 if any part failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
wheels='' out=gpu_check.json options=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) header; exit ;;
    --wheels | --out) [[ ${2-} ]] || die "$1 needs a value (bash $0 --help)" ;;&
    --wheels) wheels=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --) shift; options=("$@"); break ;;
    *) die "unknown argument: $1; options of the program stand behind -- (bash $0 --help)" ;;
  esac
done
python=${PYTHON:-python3}
command -v "$python" > /dev/null || die "there is no $python; set PYTHON"
if [[ $wheels ]]; then
  files=("$wheels"/*.whl)
  [[ -f ${files[0]} ]] || die "--wheels $wheels: there are no wheels in it"
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" "${files[@]}" ||
    die "the wheels of $wheels cannot be installed for $("$python" -V)"
  export PYTHONPATH=$root:$site${PYTHONPATH:+:$PYTHONPATH}
fi
for package in torch triton fairseq; do
  "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$package') is None)" ||
    die "$python has no $package: bash scripts/install.sh, or --wheels FOLDER where there is no network"
done
out=$(realpath -m -- "$out")
cd "$root"
"$python" -m benchmarks.gpu_check --out "$out" ${options[@]+"${options[@]}"}
