#!/usr/bin/env bash
# Builds librltrain_cuda.so beside librltrain.so, against what cuda.py finds or fetches.
set -euo pipefail
cd "$(dirname "$0")/../.."
found=$(python3 scripts/setup/cuda.py)
mapfile -t options <<< "$found"
scripts/setup/core.sh rltrain_cuda build/cuda "${options[@]}"
# The program looks beside librltrain.so: in build/lib, and in the cache where the program was moved elsewhere.
for folder in build/lib "${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}/lib"; do
  mkdir -p "$folder"
  cp build/cuda/lib/librltrain_cuda.so "$folder/librltrain_cuda.so.new"
  mv "$folder/librltrain_cuda.so.new" "$folder/librltrain_cuda.so"
done
