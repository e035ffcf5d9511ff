#!/usr/bin/env bash
# Prints the exports that plain go build, go test, go vet and gopls need; builds libtokenizers.a if it
# is nowhere yet.
set -euo pipefail
cd "$(dirname "$0")/../.."
tokenizers=$(scripts/setup/tokenizers.sh)
# The inner quotes are go's: it splits the flags at blanks.
cat << END
export CGO_CFLAGS="-O2 -g '-I$PWD/csrc/include'"
export CGO_LDFLAGS="-O2 -g '-L$tokenizers'"
export RLTRAIN_LIB="$PWD/build/lib/librltrain.so"
END
