# Shared by the recipes: sourced, not run. Expects to be sourced from a script in scripts/.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$root/.venv/bin:$PATH"

# Prints a command the way a user could type it, then runs it.
run() { printf '+ %s\n' "$*" >&2; "$@"; }
