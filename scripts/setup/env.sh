#!/usr/bin/env bash
# Prints the exports that plain go build, go test, go vet and gopls need; builds libtokenizers.a if it
# is nowhere yet.
set -euo pipefail
cd "$(dirname "$0")/../.."
tokenizers=$(scripts/setup/tokenizers.sh)
printf 'export CGO_CFLAGS=%q\n' "-O2 -g '-I$PWD/csrc/include'"
printf 'export CGO_LDFLAGS=%q\n' "-O2 -g '-L$tokenizers'"
printf 'export RLTRAIN_LIB=%q\n' "$PWD/build/lib/librltrain.so"
