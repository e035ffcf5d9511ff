#!/usr/bin/env bash
# Builds build/lib/librltrain.so and the C++ tests against the libtorch that libtorch.py finds.
set -euo pipefail
cd "$(dirname "$0")/../.."

libtorch=$(python3 scripts/setup/libtorch.py)
mkdir -p build
exec 9> build/.lock
flock 9
if [[ $(cat build/.libtorch 2> /dev/null) != "$libtorch" ]]; then
  cmake -S . -B build -DLIBTORCH_DIR="$libtorch"
  echo "$libtorch" > build/.libtorch
fi
cmake --build build -j2 -- --no-print-directory
# bin/rltrain looks in ../lib.
ln -sfn build/lib lib
# A program that was moved elsewhere (go install) looks in the cache.
installed=${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}/lib/librltrain.so
if ! cmp -s build/lib/librltrain.so "$installed"; then
  mkdir -p "$(dirname "$installed")"
  cp build/lib/librltrain.so "$installed.new"
  mv "$installed.new" "$installed"
fi
