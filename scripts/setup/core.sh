#!/usr/bin/env bash
# core.sh [TARGET [FOLDER [OPTION...]]]: build TARGET (default rltrain, the library) in FOLDER (default build) with the
# libtorch that ./scripts/setup finds. OPTIONs go to cmake and persist for later calls.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${1:-rltrain} folder=${2:-build}
libtorch=$(go run ./scripts/setup libtorch)
mkdir -p "$folder"
exec 9> "$folder/.lock"
flock 9
configured=$(cat "$folder/.configured" 2> /dev/null || true)
options=("-DLIBTORCH_DIR=$libtorch" "${@:3}")
for option in "${options[@]}"; do
  if ! grep -qxF -e "$option" <<< "$configured"; then
    cmake -S . -B "$folder" "${options[@]}"
    printf '%s\n' "${options[@]}" > "$folder/.configured"
    break
  fi
done
cmake --build "$folder" --target "$target" -j2 -- --no-print-directory
[[ $target == rltrain && $folder == build ]] || exit 0
# bin/rltrain searches ../lib.
ln -sfn build/lib lib
# An executable installed elsewhere (go install) searches the cache.
installed=${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}/lib/librltrain.so
if ! cmp -s build/lib/librltrain.so "$installed"; then
  mkdir -p "$(dirname "$installed")"
  cp build/lib/librltrain.so "$installed.new"
  mv "$installed.new" "$installed"
fi
# An existing CUDA library must come from the same build.
if [[ -f build/lib/librltrain_cuda.so ]]; then
  exec 9>&-
  exec scripts/setup/cuda.sh
fi
