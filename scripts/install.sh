#!/usr/bin/env bash
# Installs amlp-fairseq with all that its pages and tests use into .venv beside this folder.
#   usage: bash scripts/install.sh
#
#   PYTHON       the interpreter, of Python 3.10, 3.11 or 3.12; default python3
#   TORCH_INDEX  where pip finds torch; default PyTorch's CPU builds; https://pypi.org/simple has its CUDA build
#   WHEELS       a folder that scripts/build_wheels.sh has filled: no compiler is needed, and the checkout is not used
#
# Settings hold until others are given. Does nothing if .venv holds all this already, except that the engine is compiled if it
# has changed. Only a .venv that this script has made is made anew; it has a file named recipe.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
no_arguments "$@"
wheels=${WHEELS:+$(realpath -m "$WHEELS")}
cd "$root"
venv=.venv
if [[ -f $venv/settings ]]; then
  { read -r last_index; read -r last_wheels; read -r last_python || true; } < "$venv/settings"
  TORCH_INDEX=${TORCH_INDEX-$last_index} PYTHON=${PYTHON-$last_python}
  if [[ ! ${WHEELS+set} ]]; then wheels=$last_wheels; fi
fi
# shellcheck source=scripts/venv.sh
source "$root/scripts/venv.sh"

# The engine, anew where it has changed; wheels have it.
compile_engine() {
  if [[ ! $wheels ]]; then "$venv/bin/python" setup.py -q build_ext --inplace; fi
}

settings=${TORCH_INDEX-}$'\n'$wheels$'\n'${PYTHON-}
recipe=$(cat setup.py pyproject.toml scripts/{install,venv}.sh scripts/fairseq.txt - <<< "$settings" | sha256sum)
if [[ $wheels ]]; then plugin=("$wheels"/amlp_fairseq-*.whl); fi
# Whether it is the plugin of the folder of wheels, if there is one still.
same_plugin() { [[ ! -f ${plugin[0]-} ]] || sha256sum --status --check "$venv/wheel"; }
if [[ -f $venv/recipe && $(< $venv/recipe) == "$recipe" ]] && same_plugin; then
  compile_engine
  exit 0
fi
if [[ -e $venv && ! -f $venv/recipe ]]; then
  die "$root/$venv was not made by this script (it has no file named recipe): move it away, or remove it"
fi

python=$(find_python)
if [[ $wheels ]]; then
  [[ -f ${plugin[0]} ]] || die "WHEELS=$wheels has no wheel of amlp-fairseq: bash scripts/build_wheels.sh $wheels"
  [[ ${#plugin[@]} == 1 ]] || die "WHEELS=$wheels has more than one wheel of amlp-fairseq: ${plugin[*]##*/}"
else
  need_compiler "; or set WHEELS to a folder of scripts/build_wheels.sh"
fi

rm -rf "$venv"
mkdir "$venv"
echo unfinished > "$venv/recipe"
echo "$settings" > "$venv/settings"
"$python" -m venv "$venv"
echo "install: torch $torch, then fairseq and the rest, into $root/$venv (minutes)" >&2
install_torch
if [[ $wheels ]]; then
  # A wheel of fairseq is preferred to its source on PyPI; without one for this Python pip would go on to compile.
  pip install --find-links "$wheels" --only-binary fairseq-fixed "${plugin[0]}[train,test,bench]"
  sha256sum "${plugin[0]}" > "$venv/wheel"
else
  install_build_tools
  pip_fairseq install
  pip install --no-build-isolation -e ".[train,test,bench]"
fi
"$venv/bin/python" -c "import torch, fairseq.data.data_utils_fast, fairseq.libnat" > /dev/null 2>&1 ||
  die "fairseq was built without its C++ extensions"
echo "$recipe" > "$venv/recipe"
compile_engine
