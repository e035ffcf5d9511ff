#!/usr/bin/env bash
# Check that the build tools are installed and recent enough. For each that is not, print the command that installs it
# on Debian and Ubuntu.
set -euo pipefail
missing=0

# need NAME MINIMUM VERSION INSTALL. VERSION is empty if the tool is not installed.
need() {
  if [[ -z $3 ]]; then
    echo "error: $1 is not installed; on Debian or Ubuntu: $4" >&2
  elif [[ $(printf '%s\n' "$2" "$3" | sort -V | head -n 1) != "$2" ]]; then
    echo "error: $1 is version $3, older than $2; on Debian or Ubuntu: $4" >&2
  else
    return 0
  fi
  missing=1
}

# version COMMAND...: print the first dotted number in the command's output.
version() {
  command -v "$1" > /dev/null || return 0
  "$@" 2> /dev/null < /dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true
}

case $(uname -sm) in
  "Linux x86_64") arch=amd64 ;;
  "Linux aarch64") arch=arm64 ;;
  *)
    echo "error: this is $(uname -sm); rltrain builds on Linux, x86_64 or aarch64" >&2
    exit 1
    ;;
esac
# Go 1.21 and later fetch the toolchain that go.mod requires.
need go 1.21 "$(version go version)" \
  "curl -fsSL https://go.dev/dl/go1.26.0.linux-$arch.tar.gz | sudo tar -C /usr/local -xz && export PATH=/usr/local/go/bin:\$PATH"
# g++ 11 miscompiles or rejects vector types and pragmas of the kernels.
need g++ 12 "$(version g++ -dumpfullversion)" 'sudo apt-get install -y g++'
need cmake 3.18 "$(version cmake --version)" 'sudo apt-get install -y cmake'
need flock 2 "$(version flock --version)" 'sudo apt-get install -y util-linux'
if [[ -z ${LIBTOKENIZERS:-} ]]; then
  need cargo 1.78 "$(version cargo --version)" \
    'curl -fsSL https://sh.rustup.rs | sh -s -- -y --profile minimal && export PATH=$HOME/.cargo/bin:$PATH'
fi
exit $missing
