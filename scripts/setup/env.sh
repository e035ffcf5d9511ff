#!/usr/bin/env bash
# Prints the exports that plain go build, go test, go vet and gopls need; builds libtokenizers.a if it
# is nowhere yet.
set -euo pipefail
cd "$(dirname "$0")/../.."
tokenizers=$(scripts/setup/tokenizers.sh)
# go's cache does not watch a header outside the package, so the flags name its contents.
header=$(sha256sum csrc/include/rltrain.h)
# The inner quotes are go's: it splits the flags at blanks.
cat << END
export CGO_CFLAGS="-O2 -g '-I$PWD/csrc/include' -DRLTRAIN_HEADER=0x${header:0:8}"
export CGO_LDFLAGS="-O2 -g '-L$tokenizers'"
export RLTRAIN_LIB="$PWD/build/lib/librltrain.so"
END
