#!/usr/bin/env bash
# cuda.sh [TARGET]: build TARGET (default rltrain_cuda, the CUDA library) with what ./scripts/setup finds or downloads.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${1:-rltrain_cuda}
found=$(go run ./scripts/setup cuda)
mapfile -t options <<< "$found"
scripts/setup/core.sh "$target" build "${options[@]}"
[[ $target == rltrain_cuda ]] || exit 0
# An executable installed elsewhere searches the cache.
installed=${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}/lib
mkdir -p "$installed"
cp build/lib/librltrain_cuda.so "$installed/librltrain_cuda.so.new"
mv "$installed/librltrain_cuda.so.new" "$installed/librltrain_cuda.so"
