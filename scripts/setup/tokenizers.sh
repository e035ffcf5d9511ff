#!/usr/bin/env bash
# Print the folder of libtokenizers.a: $LIBTOKENIZERS, or the user's cache, where cargo builds it from the sources in
# the Go module if it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -n ${LIBTOKENIZERS:-} ]]; then
  if [[ ! -f $LIBTOKENIZERS/libtokenizers.a ]]; then
    echo "error: LIBTOKENIZERS=$LIBTOKENIZERS has no libtokenizers.a; unset it to let make build one" >&2
    exit 1
  fi
  realpath "$LIBTOKENIZERS"
  exit
fi

cache=${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}
version=$(awk '$1 == "github.com/daulet/tokenizers" || $2 == "github.com/daulet/tokenizers" {
  print $1 == "require" ? $3 : $2; exit }' go.mod)
folder=$cache/tokenizers-$version
mkdir -p "$cache"
folder=$(realpath "$cache")/tokenizers-$version

build() {
  local source work=$folder.build
  go mod download github.com/daulet/tokenizers >&2
  source=$(go list -m -f '{{.Dir}}' github.com/daulet/tokenizers)
  mkdir -p "$work"
  # The module cache is read-only, but cargo writes next to Cargo.toml. An interrupted build resumes.
  cp -r --no-preserve=mode "$source"/{Cargo.toml,Cargo.lock,src,benches,LICENSE} "$work"
  (cd "$work" && cargo build --release --locked --lib --target-dir target >&2 < /dev/null)
  rm -rf "$folder.new"
  mkdir "$folder.new"
  cp "$work/target/release/libtokenizers.a" "$work/LICENSE" "$folder.new"
  strip --strip-debug "$folder.new/libtokenizers.a"
  mv -T "$folder.new" "$folder"
  rm -rf "$work"
}

if [[ ! -s $folder/libtokenizers.a ]]; then
  exec 9> "$cache/.tokenizers.lock"
  flock -n 9 || { echo "another make is building libtokenizers.a; waiting for it" >&2; flock 9; }
  if [[ ! -s $folder/libtokenizers.a ]]; then
    echo "building libtokenizers.a (about two minutes, once)" >&2
    rm -rf "$folder"
    build
  fi
fi
echo "$folder"
