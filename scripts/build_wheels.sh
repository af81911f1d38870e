#!/usr/bin/env bash
# Builds the wheels of fairseq and amlp-fairseq into the folder OUT: who installs from it needs no compiler.
#   usage: bash scripts/build_wheels.sh OUT
#   then, on any machine of this kind with the same Python, WHEELS=OUT bash scripts/install.sh, or by hand:
#          pip install torch==2.13.0
#          pip install --find-links OUT "amlp-fairseq[train]"
#
#   PYTHON       the interpreter to build for, of Python 3.10, 3.11 or 3.12; default python3
#   TORCH_INDEX  where pip finds the torch to compile against; default PyTorch's CPU builds, which will do for CUDA, too
#
# Takes minutes and 2 GB of $TMPDIR (default /tmp). Wheels of the same name are replaced.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [[ $# == 1 && ($1 == -h || $1 == --help) ]]; then header; exit; fi
[[ $# == 1 && $1 && $1 != -* ]] || die "one folder is needed, got: ${*:-nothing} (bash $0 --help)"
out=$(realpath -m -- "$1")
[[ ! -e $out || -d $out ]] || die "$out is not a folder"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[[ $work != *[[:space:]]* ]] || die "torch compiles nothing in a path with spaces: set TMPDIR, which is ${TMPDIR-}"
venv=$work/venv
# shellcheck source=scripts/venv.sh
source "$root/scripts/venv.sh"
python=$(find_python)
need_compiler
log=$work/log
step() {
  printf '%4d s  %s\n' "$SECONDS" "$1" >&2; shift
  ("$@") > "$log" 2>&1 || { tail -n 30 "$log" >&2; die "failed: $*"; }
}

step "environment of $("$python" -V)" "$python" -m venv "$venv"
step "torch $torch" install_torch
step "build tools" install_build_tools
step "fairseq" pip_fairseq wheel -w "$work/out"
if [[ -e $(echo "$work"/out/fairseq_fixed-*-none-any.whl) ]]; then die "fairseq was built without its C++ extensions"; fi
# fairseq's options need this one, which PyPI has as source only.
step "antlr4" pip wheel --no-build-isolation --no-deps -w "$work/out" "antlr4-python3-runtime==4.9.3"
# In a copy: setuptools would also pack what an earlier build has left in the checkout.
mkdir "$work/source"
cp -r "$root"/{amlp_fairseq,configs,setup.py,pyproject.toml,README.md,LICENSE} "$work/source"
step "amlp-fairseq" pip wheel --no-build-isolation --no-deps -w "$work/out" "$work/source"
mkdir -p "$out"
mv -f "$work"/out/*.whl "$out"
printf '%4d s  done: %s\n' "$SECONDS" "$out" >&2
cd "$out"
printf '%s\n' ./*.whl
