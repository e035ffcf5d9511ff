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
