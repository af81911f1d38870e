# shellcheck shell=bash
# How install.sh and build_wheels.sh make their environments: sourced behind lib.sh, not run. They set venv before, and then python.
# shellcheck disable=SC2154
torch=2.13.0
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

# The interpreter that $PYTHON names, after checking that it will do.
find_python() {
  local python=${PYTHON:-python3} version
  command -v "$python" > /dev/null || die "there is no $python; set PYTHON to Python 3.10, 3.11 or 3.12"
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  case $version in
    3.10 | 3.11 | 3.12) ;;
    *) die "Python 3.10, 3.11 or 3.12 is needed, $python is $version; set PYTHON" ;;
  esac
  "$python" -c 'import ensurepip, venv' 2> /dev/null ||
    die "$python cannot make environments (on Debian: apt-get install python$version-venv)"
  echo "$python"
}

# What compiling fairseq needs; $1 is what else would do.
need_compiler() {
  command -v g++ > /dev/null || die "a C++ compiler is needed to build fairseq (on Debian: apt-get install g++)${1-}"
  local include
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  [[ -f $include/Python.h ]] || die "the headers of $python are needed to build fairseq (on Debian: apt-get install python3-dev)${1-}"
}

# pip of the environment in the folder $venv; prints errors only.
pip=("$venv/bin/python" -m pip -qq --disable-pip-version-check)
pip() { "${pip[@]}" "$@"; }

# torch first: fairseq is compiled against it. A CPU build that the user's own pip settings can reach comes before
# PyTorch's index; PyPI's build brings CUDA.
install_torch() {
  if [[ ! ${TORCH_INDEX-} ]] && pip install "torch==$torch+cpu" 2> /dev/null; then return; fi
  pip install "torch==$torch" --index-url "$index" ||
    die "torch $torch cannot be installed from $index; set TORCH_INDEX to an index that has it"
}

# Without build isolation pip compiles against the torch of the environment, and downloads no second one.
install_build_tools() { pip install "setuptools>=77,<82" wheel cython numpy "pybind11>=3,<4"; }

# Runs pip for the source of fairseq: with its C++ extensions, but not those for CUDA, and without debug information.
# Its setup.py builds none where READTHEDOCS is set, and all where CUDA_HOME is. Without pip's cache: it may hold a
# fairseq without them, or one that was compiled against another torch.
pip_fairseq() {
  MAX_JOBS=$(nproc) CFLAGS="${CFLAGS:--O1 -g0}" LDFLAGS="${LDFLAGS:--s}" env -u CUDA_HOME -u READTHEDOCS \
    "${pip[@]}" "$@" --no-cache-dir --no-build-isolation --no-deps --require-hashes -r "$root/scripts/fairseq.txt"
}
