#!/usr/bin/env bash
# Test what README.md and docs/install.md promise: the commands of README's section Install, as they are written there, and what
# they install, with an empty home folder and without the settings of this build. Run it after make wheel bundle. It downloads
# libtorch and models, and compiles a clone of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t network < <(env | grep -iE '^(pip_|https?_proxy=|no_proxy=|ssl_cert)' || true)
caches=(RLTRAIN_CACHE="${RLTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rltrain}" GOCACHE="$(go env GOCACHE)" GOMODCACHE="$(go env GOMODCACHE)" CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}")
launchers=$(env | grep -E '^(CMAKE_CXX_COMPILER_LAUNCHER|CCACHE_)' || true)

# fresh FOLDER COMMAND...: run a command with FOLDER first on PATH and nothing else of this user's.
fresh() {
  local path=$1
  shift
  (cd "$work" && env -i "${network[@]}" HOME="$work/home" PATH="$path:/usr/local/bin:/usr/bin:/bin" LANG=C.UTF-8 "$@")
}

expect() { # expect FILE TEXT...
  local file=$1 text
  shift
  for text; do
    grep -qF -e "$text" "$file" || { echo "error: $file has no '$text':" >&2; tail -n 20 "$file" >&2; exit 1; }
  done
}

# promised PART: the command of README's section Install that has PART.
promised() {
  local found
  found=$(sed -n '/^## Install/,/^## Recipes/p' README.md | sed -n '/^```sh$/,/^```$/p' | sed 's/ *#.*//' | grep -F -e "$1") ||
    { echo "error: README.md promises no '$1'; change $0 with it" >&2; exit 1; }
  [[ $found != *$'\n'* ]] || { echo "error: README.md has '$1' more than once" >&2; exit 1; }
  echo "$found"
}

lines=$(sed -n '/^## Install/,/^## Recipes/p' README.md | sed -n '/^```sh$/,/^```$/p' | grep -cv '^```')
((lines == 4)) || { echo "error: README.md promises $lines commands; this script runs four" >&2; exit 1; }
pip=$(promised 'pip install') tar=$(promised 'tar xf') sources=$(promised 'supervised_then_rl') install=$(promised 'make install')
mkdir "$work/home" "$work/dist"
cp dist/rltrain-*.whl dist/rltrain-*-linux-"$(uname -m)".tar.xz "$work/dist" || { echo "error: run make wheel bundle" >&2; exit 1; }

echo "$pip"
python3 -m venv "$work/venv"
(cd "$work/dist" && PATH="$work/venv/bin:$PATH" bash -c "$pip" > "$work/pip.txt")
fresh "$work/venv/bin" rltrain doctor > "$work/doctor.txt" 2>&1 && { echo "error: doctor finds a libtorch in an empty home" >&2; exit 1; }
expect "$work/doctor.txt" "fix: rltrain setup"
fresh "$work/venv/bin" rltrain --yes --mode supervised_then_rl > "$work/train.txt" 2> "$work/train.err"
expect "$work/train.txt" supervised "Change by RL"
fresh "$work/venv/bin" rltrain doctor > "$work/doctor.txt"
expect "$work/doctor.txt" "(from the cache)" Operators

echo "$tar"
(cd "$work/dist" && bash -c "$tar")
mv "$work"/dist/rltrain-*-linux-"$(uname -m)" "$work/moved"
fresh "$work/moved/bin" rltrain generate --yes --model smollm2 --max-new-tokens 8 > "$work/generated.txt" 2> "$work/generated.err" <<< 'What is the capital of France?'
expect "$work/generated.txt" Paris
fresh "$work/moved/bin" rltrain setup --sdk > "$work/sdk.txt"
expect "$work/sdk.txt" "$work/moved/lib/rltrain"

# in_clone COMMAND: run a command in the clone, with the caches of this user but another home.
in_clone() { (cd "$work/clone" && env HOME="$work/home" "${caches[@]}" ${launchers//$'\n'/ } bash -c "$1"); }

git clone --quiet . "$work/clone"
echo "$sources"
in_clone "$sources" > "$work/sources.txt" 2> "$work/sources.err" || { tail -n 20 "$work/sources.err" >&2; exit 1; }
expect "$work/sources.txt" "Change by RL"
echo "$install"
in_clone "$install" > "$work/install.txt"
fresh "$work/home/.local/bin" rltrain version --json > "$work/version.txt"
expect "$work/version.txt" "$work/home/.local/lib/rltrain/librltrain.so"
for name in man/man1/rltrain.1 bash-completion/completions/rltrain zsh/site-functions/_rltrain fish/vendor_completions.d/rltrain.fish; do
  [[ -s $work/home/.local/share/$name ]] || { echo "error: make install writes no $name" >&2; exit 1; }
done
make -s install-files DESTDIR="$work/root" PREFIX=/usr
fresh "$work/root/usr/bin" rltrain version --json > "$work/version.txt"
expect "$work/version.txt" "$work/root/usr/lib/rltrain/librltrain.so"
echo "the commands of README.md do what it promises"
