#!/usr/bin/env bash
# Run a Python script (default scripts/compat.py) in a virtual environment with the pinned transformers, peft and torch,
# or with the packages of "-r FILE". The environment is created in the user's cache on first use. If RLTRAIN_PYTHON is
# set, use that Python and its packages instead.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}
requirements=$root/scripts/requirements.txt
if [[ ${1:-} == -r ]]; then
  requirements=$root/$2
  shift 2
fi

python=${RLTRAIN_PYTHON:-}
if [[ -z $python ]]; then
  mkdir -p "$cache"
  venv=$(realpath "$cache")/venv-$(sha256sum "$requirements" | cut -c 1-12)
  python=$venv/bin/python
  exec 9> "$cache/.venv.lock"
  flock 9
  if [[ ! -e $venv/.done ]]; then
    echo "creating the Python environment for the comparison scripts (once)" >&2
    python3 -m venv --clear "$venv" || {
      echo "error: python3 cannot make a virtual environment; on Debian or Ubuntu: sudo apt-get install -y python3-venv" >&2
      exit 1
    }
    (cd / && "$python" -m pip install --disable-pip-version-check -r "$requirements")
    touch "$venv/.done"
  fi
  exec 9>&-
fi
cd "$root"
exec "$python" "${@:-scripts/compat.py}"
