#!/usr/bin/env bash
# Test what README.md and docs/install.md promise: the wheel, the tarball and make install, each with an empty home folder and
# without the settings of this build. Run it after make wheel bundle. It downloads libtorch and models.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=$(echo "$PWD"/dist/rltrain-*.whl) tarball=$(echo "$PWD"/dist/rltrain-*-linux-$(uname -m).tar.xz)
[[ -f $wheel && -f $tarball ]] || { echo "error: want one wheel and one tarball in dist; run make wheel bundle" >&2; exit 1; }
mapfile -t network < <(env | grep -iE '^(pip_|https?_proxy=|no_proxy=|ssl_cert)' || true)

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

mkdir "$work/home"
echo "the wheel"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "$wheel"
fresh "$work/venv/bin" rltrain doctor > "$work/doctor.txt" 2>&1 && { echo "error: doctor finds a libtorch in an empty home" >&2; exit 1; }
expect "$work/doctor.txt" "fix: rltrain setup"
fresh "$work/venv/bin" rltrain --yes --mode supervised_then_rl > "$work/train.txt" 2> "$work/train.err"
expect "$work/train.txt" supervised "Change by RL"
fresh "$work/venv/bin" rltrain doctor > "$work/doctor.txt"
expect "$work/doctor.txt" "(from the cache)" Operators

echo "the tarball"
tar -C "$work" -xf "$tarball"
mv "$work"/rltrain-*-linux-$(uname -m) "$work/moved"
fresh "$work/moved/bin" rltrain generate --yes --model smollm2 --max-new-tokens 8 > "$work/generated.txt" 2> "$work/generated.err" <<< 'What is the capital of France?'
expect "$work/generated.txt" Paris
fresh "$work/moved/bin" rltrain setup --sdk > "$work/sdk.txt"
expect "$work/sdk.txt" "$work/moved/lib/rltrain"

echo "make install"
make -s install-files DESTDIR="$work/root" PREFIX=/usr
fresh "$work/root/usr/bin" rltrain version --json > "$work/version.txt"
expect "$work/version.txt" "$work/root/usr/lib/rltrain/librltrain.so"
for name in man/man1/rltrain.1 bash-completion/completions/rltrain zsh/site-functions/_rltrain fish/vendor_completions.d/rltrain.fish; do
  [[ -s $work/root/usr/share/$name ]] || { echo "error: make install writes no $name" >&2; exit 1; }
done
echo "the packages do what README.md promises"
