# Shared by the recipes: sourced, not run. Expects to be sourced from a script in scripts/.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/.venv/bin:$PATH"

# Prints a command the way a user could type it, then runs it.
run() { printf '+ %s\n' "$*" >&2; "$@"; }

# glibc returns every large tensor's memory to the kernel at once and faults it in again for the next one: keeping it
# makes training on a CPU about 1.4 times as fast (measured with the small models of configs/multi30k).
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
